"use strict";

// One page, no framework: a chat on the left that streams, the experts' shares on the right, polled each second.

const POLL_MS = 1000;
const UNEVEN = 2; // max/mean above which a layer is called unbalanced

const byId = (id) => document.getElementById(id);
const turns = []; // the conversation so far: {role, content}
let running = null; // AbortController of the answer that is being streamed

// ---- chat ----

function addTurn(role, text) {
  const turn = document.createElement("div");
  turn.className = `turn ${role}`;
  turn.textContent = text;
  byId("welcome").hidden = true;
  byId("log").append(turn);
  byId("log").scrollTop = byId("log").scrollHeight;
  return turn;
}

function showProblem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}

function setBusy(busy) {
  byId("send").disabled = busy;
  byId("stop").disabled = !busy;
}

function showFigures(usage, timings) {
  if (usage) {
    const cached = usage.prompt_tokens_details.cached_tokens;
    byId("prompt-tokens").textContent = `${usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""}`;
    byId("answer-tokens").textContent = usage.completion_tokens;
  }
  if (timings) {
    byId("first").textContent = `${timings.ttft_ms.toFixed(1)} ms`;
    byId("speed").textContent = timings.tokens_per_second ? timings.tokens_per_second.toFixed(1) : "–";
  }
}

// Yields the JSON of each event; lines may be split anywhere over network reads.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      yield JSON.parse(line.slice(6));
    }
  }
}

async function request(signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    signal,
    body: JSON.stringify({
      messages: turns,
      stream: true,
      stream_options: { include_usage: true },
      timings: true,
      temperature: Number(byId("temperature").value),
      max_tokens: Number(byId("limit").value),
    }),
  });
  if (response.ok) return response;
  const problem = await response.json().catch(() => null);
  throw new Error(problem?.error?.message ?? `the server answered ${response.status}`);
}

async function streamAnswer(turn) {
  const started = performance.now();
  let text = "";
  let chunks = 0;
  let first = 0;
  const response = await request(running.signal);
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message);
    const piece = event.choices[0]?.delta?.content;
    if (piece) {
      first ||= performance.now();
      chunks++;
      text += piece;
      turn.textContent = text;
      byId("log").scrollTop = byId("log").scrollHeight;
      const seconds = (performance.now() - first) / 1000;
      byId("first").textContent = `${(first - started).toFixed(0)} ms`;
      if (seconds > 0.2) byId("speed").textContent = `≈ ${(chunks / seconds).toFixed(1)}`;
    }
    showFigures(event.usage, event.timings);
  }
  return text;
}

async function send(text) {
  turns.push({ role: "user", content: text });
  addTurn("user", text);
  const turn = addTurn("assistant", "");
  turn.classList.add("busy");
  running = new AbortController();
  setBusy(true);
  showProblem("");
  try {
    await streamAnswer(turn);
  } catch (problem) {
    if (problem.name !== "AbortError") showProblem(problem.message);
  } finally {
    turn.classList.remove("busy");
    running = null;
    setBusy(false);
    // What was said stays said, also when it was stopped in the middle.
    turns.push({ role: "assistant", content: turn.textContent });
    if (!turn.textContent) turn.remove();
  }
}

function clear() {
  running?.abort();
  turns.length = 0;
  byId("log").querySelectorAll(".turn").forEach((turn) => turn.remove());
  byId("welcome").hidden = false;
  showProblem("");
  byId("text").focus();
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("text").value.trim();
  if (!text || running) return;
  byId("text").value = "";
  send(text);
});

byId("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("form").requestSubmit();
});

byId("stop").addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", clear);

// ---- experts ----

function rgb(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// One canvas per layer, one pixel per expert; the browser stretches it.
function strip(layer, experts) {
  let canvas = byId(`strip-${layer}`);
  if (canvas) return canvas;
  const row = document.createElement("div");
  const name = document.createElement("span");
  canvas = document.createElement("canvas");
  row.className = "strip";
  name.textContent = layer;
  canvas.id = `strip-${layer}`;
  canvas.width = experts;
  canvas.height = 1;
  row.append(name, canvas);
  byId("strips").append(row);
  return canvas;
}

function paint(layer, tokens, cold, hot) {
  const canvas = strip(layer, tokens.length);
  const context = canvas.getContext("2d");
  const image = context.createImageData(tokens.length, 1);
  const most = Math.max(1, ...tokens);
  tokens.forEach((count, expert) => {
    const share = count / most;
    for (let c = 0; c < 3; c++) image.data[expert * 4 + c] = cold[c] + (hot[c] - cold[c]) * share;
    image.data[expert * 4 + 3] = 255;
  });
  context.putImageData(image, 0, 0);
}

function cell(row, text, uneven) {
  const td = row.insertCell();
  td.textContent = text;
  if (uneven) td.className = "uneven";
}

function showExperts(data) {
  const cold = rgb("--cold");
  const hot = rgb("--hot");
  data.tokens.forEach((tokens, layer) => paint(layer, tokens, cold, hot));
  const rows = document.createDocumentFragment();
  for (const layer of data.balance) {
    const row = document.createElement("tr");
    cell(row, layer.layer);
    cell(row, layer.tokens);
    cell(row, layer.tokens ? layer.max_over_mean.toFixed(2) : "–", layer.max_over_mean > UNEVEN);
    cell(row, layer.tokens ? `${layer.hottest} (${(layer.top1_share * 100).toFixed(0)} %)` : "–");
    cell(row, layer.zero);
    rows.append(row);
  }
  byId("layers").replaceChildren(rows);
  const busy = data.balance.some((layer) => layer.tokens > 0);
  byId("overall").textContent = busy
    ? `${data.layers} layers of ${data.experts} experts, ${data.top_k} per token. Max over mean: ` +
      `${data.overall.max_over_mean.toFixed(2)} on average, ${data.overall.worst_max_over_mean.toFixed(2)} ` +
      `in layer ${data.overall.worst_layer}.`
    : `${data.layers} layers of ${data.experts} experts, ${data.top_k} per token. No tokens in this time.`;
}

async function getJson(path) {
  const response = await fetch(path);
  return { ok: response.ok, data: await response.json() };
}

async function poll() {
  const badge = byId("health");
  try {
    const health = await getJson("/health");
    badge.textContent = health.data.status === "ok" ? "ready" : health.data.status;
    badge.className = `badge ${health.ok ? "ok" : "bad"}`;
    if (health.ok) {
      if (!byId("model").dataset.known) await showModel();
      const experts = await getJson("/v1/experts?window=10s");
      if (experts.ok) showExperts(experts.data);
    }
  } catch {
    badge.textContent = "no connection";
    badge.className = "badge bad";
  }
  setTimeout(poll, document.hidden ? 10 * POLL_MS : POLL_MS);
}

async function showModel() {
  const models = await getJson("/v1/models");
  const model = models.data.data[0];
  const millions = (count) => (count >= 1e9 ? `${(count / 1e9).toFixed(1)} B` : `${(count / 1e6).toFixed(1)} M`);
  byId("model").textContent =
    `${model.id} · ${model.meta.architecture} · ${millions(model.meta.params_total)} parameters, ` +
    `${millions(model.meta.params_active)} active`;
  byId("model").dataset.known = "yes";
}

poll();
