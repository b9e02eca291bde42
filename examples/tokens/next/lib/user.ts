// Your own sign-in goes here: return who sends the request, null for nobody.
export function signedInUser(request: Request): string | null {
  const found = /(?:^|; )user=([a-z0-9]+)/.exec(request.headers.get('cookie') ?? '')
  return found === null ? null : found[1]
}
