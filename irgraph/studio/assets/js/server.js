// Asks the server; what it refuses is an answer with its reasons.
async function ask(what, value) {
  let answer;
  try {
    answer = await fetch(what, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });
  } catch {
    return refused("The studio no longer answers.", "Is irgraph studio still running?");
  }
  try {
    return await answer.json();
  } catch {
    return refused(`The studio answered ${answer.status}.`, "");
  }
}

function refused(message, hint) {
  return { legal: false, problems: [{ severity: "error", message, hint, where: "", mark: null, notes: [] }] };
}
