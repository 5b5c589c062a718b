"""Uses the generated client as a program would: apply, deploy, approve, read, watch."""

import sys
import time

from chancery_client import Client
from chancery_client.api.clusters import cluster_apply
from chancery_client.api.deployments import deployment_create, get_deployment
from chancery_client.api.events import events
from chancery_client.api.nodes import get_node, node_apply
from chancery_client.api.operations import list_operations, operation_approve
from chancery_client.api.plans import plan_apply
from chancery_client.models import (
    AcceptedResponse,
    ApproveOne,
    ClusterApplyBody,
    DeploymentCreateBody,
    NodeApplyBody,
    OperationRowsPage,
    PlanApplyBody,
    Problem,
)

client = Client(base_url=sys.argv[1])
fleet = "default"


def accepted(answer):
    assert isinstance(answer, AcceptedResponse), answer
    return answer


def until(what, ready):
    for _ in range(600):
        if found := ready():
            return found
        time.sleep(0.1)
    raise TimeoutError(what)


accepted(cluster_apply.sync(fleet, "python", client=client, body=ClusterApplyBody.from_dict({"spec": {"runtime": "simulated"}})))
node = {"cluster": "python", "spec": {"domain": "d1", "resources": {"cpu": 4000, "memory": 8589934592}}}
first = accepted(
    node_apply.sync(fleet, "python-1", client=client, body=NodeApplyBody.from_dict(node), if_none_match="*")
)
again = node_apply.sync(fleet, "python-1", client=client, body=NodeApplyBody.from_dict(node), if_none_match="*")
assert isinstance(again, Problem) and again.status == 412, again


def is_known():
    row = get_node.sync_detailed(fleet, "python-1", client=client)
    assert row.parsed.name == "python-1", row
    # The executor may change the row in between.
    return get_node.sync_detailed(fleet, "python-1", client=client, if_none_match=row.headers["etag"]).status_code == 304


until("a row that does not change", is_known)

plan = {"namespace": "python", "service": "python", "cluster": "python", "payloads": [{"name": "web", "resources": {"cpu": 1000}}]}
accepted(plan_apply.sync(fleet, "python", client=client, body=PlanApplyBody.from_dict({"spec": plan})))
deployment = {"name": "one", "spec": {"count": 1, "coordinates": {"web": {"image": "web:1"}}}}
accepted(deployment_create.sync(fleet, "python", client=client, body=DeploymentCreateBody.from_dict(deployment)))


def pending():
    page = list_operations.sync(fleet, client=client, plan="python", state="pending_approval,approved")
    assert isinstance(page, OperationRowsPage), page
    return page.items


operation = until("an operation", pending)[0]
accepted(operation_approve.sync(fleet, str(operation.id), client=client, body=ApproveOne(hash_=operation.hash_)))
until("the deployment", lambda: get_deployment.sync(fleet, "python", "one", client=client).state == "completed")

# The stream of new events of the plan ends after two.
lines = events.sync_detailed(
    fleet, client=client, from_=str(first.position), subject="deployment/python/one", follow=True, limit=2
).content
assert lines.count(b'"partitionkey":"deployment/python/one"') == 2, lines
print("python: applied, deployed, approved, read, watched")
