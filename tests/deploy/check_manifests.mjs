// Holds Kubernetes manifests against the schemas of kubernetes-models: unknown fields and wrong types by the TypeScript
// compiler, required fields and formats (quantities, ports) by the validators. Reads [{file, document}] as JSON from
// standard input; prints a line for each mistake and ends with 1 when there is any.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const require = createRequire(path.join(here, "package.json"));
const ts = require("typescript");

const items = JSON.parse(fs.readFileSync(0, "utf8"));
const mistakes = [];
const sources = new Map();
for (const [i, { file, document }] of items.entries()) {
  const { apiVersion, kind } = document;
  const name = `${file}: ${kind} ${document.metadata?.name}`;
  // Groups of a plain word (apps, policy) are folders of that name, others keep their dots.
  const module = `kubernetes-models/${apiVersion}`;
  let models;
  try {
    models = require(module);
  } catch {
    mistakes.push(`${name}: ${apiVersion} is not known`);
    continue;
  }
  if (!models[kind]) {
    mistakes.push(`${name}: ${apiVersion} has no ${kind}`);
    continue;
  }
  try {
    new models[kind](document).validate();
  } catch (error) {
    mistakes.push(`${name}: ${error.message}`);
  }
  const text = `import type { I${kind} } from "${module}";\nconst x: I${kind} = ${JSON.stringify(document, null, 1)};\nexport default x;\n`;
  sources.set(path.join(here, `manifest-${i}.ts`), { name, text });
}

const options = { strict: true, noEmit: true, skipLibCheck: true, module: ts.ModuleKind.NodeNext,
                  moduleResolution: ts.ModuleResolutionKind.NodeNext, types: [] };
const host = ts.createCompilerHost(options);
const { fileExists, readFile, getSourceFile } = host;
host.fileExists = (file) => sources.has(file) || fileExists(file);
host.readFile = (file) => sources.get(file)?.text ?? readFile(file);
host.getSourceFile = (file, target, ...rest) =>
  sources.has(file) ? ts.createSourceFile(file, sources.get(file).text, target) : getSourceFile(file, target, ...rest);
const program = ts.createProgram([...sources.keys()], options, host);
for (const diagnostic of ts.getPreEmitDiagnostics(program)) {
  const source = sources.get(diagnostic.file?.fileName);
  mistakes.push(`${source?.name ?? "compiler"}: ${ts.flattenDiagnosticMessageText(diagnostic.messageText, "; ")}`);
}
for (const mistake of mistakes) console.log(mistake);
console.log(`${items.length} documents, ${mistakes.length} mistakes`);
process.exit(mistakes.length ? 1 : 0);
