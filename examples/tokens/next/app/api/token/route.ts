// The app's server: it keeps the hub's key, and gives the signed-in user a token of 15 minutes.
import { signedInUser } from '../../../lib/user'

export async function POST(request: Request): Promise<Response> {
  const user = signedInUser(request)
  if (user === null) return Response.json({ error: 'sign in first' }, { status: 401 })
  const made = await fetch(`${process.env.HUB}/api/tokens`, {
    method: 'POST',
    headers: { authorization: `Bearer ${process.env.HUB_KEY}`, 'content-type': 'application/json' },
    body: JSON.stringify({ owner: user, minutes: 15 }),
  })
  if (made.status !== 201) return Response.json({ error: 'the hub gave no token' }, { status: 502 })
  const { token, prefix, expiresAt } = await made.json()
  return Response.json({ hub: process.env.HUB, token, prefix, expiresAt })
}
