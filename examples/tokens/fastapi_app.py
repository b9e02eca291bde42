"""An app whose users chat with a hub: the server keeps the key, browsers get tokens of minutes.

Run: HUB=http://127.0.0.1:8000 HUB_KEY=dgm_… uvicorn fastapi_app:app --port 3000
The hub's dragoman.yaml: cors: {origins: ["http://127.0.0.1:3000"]}
"""

import os
from typing import Annotated

import httpx
from fastapi import Cookie, FastAPI, HTTPException
from fastapi.responses import HTMLResponse

HUB, KEY = os.environ["HUB"], os.environ["HUB_KEY"]
app = FastAPI()


@app.post("/api/token")
async def token(user: Annotated[str | None, Cookie()] = None) -> dict[str, object]:
    """Give the signed-in user a token for the sessions of that user, and of nobody else."""
    if user is None or not user.isalnum():  # your own sign-in goes here
        raise HTTPException(401, "sign in first")
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        made = await client.post(f"{HUB}/api/tokens", json={"owner": user, "minutes": 15})
    if made.status_code != 201:
        raise HTTPException(502, "the hub gave no token")
    body = made.json()
    return {"hub": HUB, "token": body["token"], "prefix": body["prefix"], "expiresAt": body["expiresAt"]}


@app.post("/api/sign-out")
async def sign_out(user: Annotated[str | None, Cookie()] = None) -> dict[str, object]:
    """Revoke what the user's browsers have."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        done = await client.delete(f"{HUB}/api/tokens", params={"owner": user or ""})
    return {"signedOut": done.status_code == 200}


@app.get("/")
async def page() -> HTMLResponse:
    """The page: it asks for a token, and then talks to the hub itself."""
    return HTMLResponse(PAGE)


PAGE = """<!doctype html><meta charset="utf-8"><title>Chat</title>
<form><input name="text" autofocus> <button>Send</button></form><pre></pre>
<script type="module">
document.cookie ||= "user=ada; path=/; samesite=strict"           // instead of a sign-in
const access = fetch("/api/token", {method: "POST"}).then(answer => answer.json())
const out = document.querySelector("pre")
document.querySelector("form").onsubmit = async event => {
  event.preventDefault()
  const text = new FormData(event.target).get("text"), {hub, token, prefix} = await access
  const message = {id: crypto.randomUUID(), role: "user", parts: [{type: "text", text}]}
  const answer = await fetch(hub + "/api/chat", {
    method: "POST", body: JSON.stringify({id: prefix + "chat", messages: [message]}),
    headers: {"content-type": "application/json", authorization: "Bearer " + token}})
  out.textContent += "\\n> " + text + "\\n"
  let rest = ""
  for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + piece).split("\\n"); rest = lines.pop()
    for (const line of lines) {
      const event = line.startsWith("data: {") ? JSON.parse(line.slice(6)) : {}
      if (event.type === "text-delta") out.textContent += event.delta
    }
  }
}
</script>"""
