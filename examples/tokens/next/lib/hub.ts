// The browser's side: fetch a token, renew it a minute before it expires, and send it with each request.
import { DefaultChatTransport, type UIMessage } from 'ai'

export type Access = { hub: string; token: string; prefix: string; expiresAt: number }

let access: Promise<Access> | null = null

export async function hubAccess(): Promise<Access> {
  const current = access === null ? null : await access.catch(() => null)
  if (current === null || current.expiresAt * 1000 - Date.now() < 60_000) {
    access = fetch('/api/token', { method: 'POST' }).then(async answer => {
      if (!answer.ok) throw new Error(`no token: ${answer.status}`)
      return (await answer.json()) as Access
    })
  }
  return await access!
}

export function hubTransport(hub: string): DefaultChatTransport<UIMessage> {
  return new DefaultChatTransport<UIMessage>({
    api: `${hub}/api/chat`,
    headers: async () => ({ Authorization: `Bearer ${(await hubAccess()).token}` }),
  })
}

export async function callHub(path: string, method = 'GET'): Promise<Response> {
  const { hub, token } = await hubAccess()
  return await fetch(`${hub}${path}`, { method, headers: { Authorization: `Bearer ${token}` } })
}
