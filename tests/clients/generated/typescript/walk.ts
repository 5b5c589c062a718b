// Uses the generated client as a program would: apply, deploy, approve, read, watch.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

const url = process.argv[2];
const client = createClient<paths>({ baseUrl: url });
const fleet = "default";

type Accepted = components["schemas"]["AcceptedResponse"];
type Answer<T> = { data?: T; error?: unknown; response: Response };

function accepted(answer: Answer<Accepted>): Accepted {
  if (!answer.data) throw new Error(JSON.stringify(answer.error));
  return answer.data;
}

async function until<T>(what: string, ready: () => Promise<T | undefined>): Promise<T> {
  for (let attempt = 0; attempt < 600; attempt += 1) {
    const found = await ready();
    if (found !== undefined) return found;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`still waiting: ${what}`);
}

const of = (name: string) => ({ path: { fleet, name } });
accepted(await client.PUT("/v1/fleets/{fleet}/clusters/{name}", {
  params: of("typescript"),
  body: { spec: { runtime: "simulated" } },
}));
const node = {
  params: { ...of("typescript-1"), header: { "If-None-Match": "*" as const } },
  body: { cluster: "typescript", spec: { domain: "d1", resources: { cpu: 4000, memory: 8589934592 } } },
};
const first = accepted(await client.PUT("/v1/fleets/{fleet}/nodes/{name}", node));
const again = await client.PUT("/v1/fleets/{fleet}/nodes/{name}", node);
if (again.response.status !== 412 || again.error?.code !== "version_conflict") throw new Error("created twice");

accepted(await client.PUT("/v1/fleets/{fleet}/plans/{name}", {
  params: of("typescript"),
  body: {
    spec: {
      namespace: "typescript", service: "typescript", cluster: "typescript",
      payloads: [{ name: "web", resources: { cpu: 1000 } }],
    },
  },
}));
accepted(await client.POST("/v1/fleets/{fleet}/plans/{plan}/deployments", {
  params: { path: { fleet, plan: "typescript" } },
  body: { name: "one", spec: { count: 1, coordinates: { web: { image: "web:1" } } } },
}));
const operation = await until("an operation", async () => {
  const query = { plan: "typescript", state: "pending_approval,approved" };
  const { data } = await client.GET("/v1/fleets/{fleet}/operations", { params: { path: { fleet }, query } });
  return data?.items[0];
});
accepted(await client.POST("/v1/fleets/{fleet}/operations/{id}/approve", {
  params: { path: { fleet, id: operation.id } },
  body: { hash: operation.hash ?? "" },
}));
await until("the deployment", async () => {
  const path = { fleet, plan: "typescript", name: "one" };
  const { data } = await client.GET("/v1/fleets/{fleet}/plans/{plan}/deployments/{name}", { params: { path } });
  return data?.state === "completed" ? data : undefined;
});

// The stream of new events of the deployment ends after two.
const { data: stream } = await client.GET("/v1/fleets/{fleet}/events", {
  params: {
    path: { fleet },
    query: { from: String(first.position), subject: "deployment/typescript/one", follow: true, limit: 2 },
  },
  parseAs: "stream",
});
let lines = "";
for await (const part of stream as unknown as AsyncIterable<Uint8Array>) lines += new TextDecoder().decode(part);
if (lines.split('"partitionkey":"deployment/typescript/one"').length !== 3) throw new Error(lines);
console.log("typescript: applied, deployed, approved, read, watched");
