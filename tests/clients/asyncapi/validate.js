// Validates the AsyncAPI description of topics and streams: `validate FILE`. Prints each finding of severity error or warning.
const { readFileSync } = require("node:fs");
const { Parser } = require("@asyncapi/parser");

async function main([file]) {
  const { document, diagnostics } = await new Parser().parse(readFileSync(file, "utf8"), { source: file });
  const found = diagnostics.filter((one) => one.severity <= 1);
  for (const { severity, path, message } of found) console.log(severity === 0 ? "error" : "warning", path.join("."), message);
  if (!document || found.length > 0) process.exit(1);
  console.log(`valid: ${document.channels().all().length} channels, ${document.operations().all().length} operations`);
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
