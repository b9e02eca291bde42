'use client'
import { useChat } from '@ai-sdk/react'
import type { UIMessage } from 'ai'
import { useEffect, useMemo, useState } from 'react'
import { type Access, callHub, hubAccess, hubTransport } from '../lib/hub'

export default function Page() {
  const [access, setAccess] = useState<Access | null>(null)
  const [stored, setStored] = useState<UIMessage[] | null>(null)
  useEffect(() => {
    document.cookie ||= 'user=ada; path=/; samesite=strict' // instead of a sign-in
    void (async () => {
      const now = await hubAccess()
      const answer = await callHub(`/api/sessions/${encodeURIComponent(`${now.prefix}chat`)}/messages`)
      setStored(answer.ok ? (await answer.json()).messages : []) // 404: nobody has written yet
      setAccess(now)
    })()
  }, [])
  return access === null || stored === null ? <p>…</p> : <Chat access={access} stored={stored} />
}

function Chat({ access, stored }: { access: Access; stored: UIMessage[] }) {
  const id = `${access.prefix}chat`
  const transport = useMemo(() => hubTransport(access.hub), [access.hub])
  const resume = stored.length > 0 // go on with an answer that is being made
  const { messages, sendMessage, status, stop, error } = useChat({ id, messages: stored, transport, resume })
  const [text, setText] = useState('')
  const stopAnswer = () => {
    void callHub(`/api/chat/${encodeURIComponent(id)}/stop`, 'POST') // ends the answer in the hub, at once
    void stop() // ends the connection
  }
  return (
    <main>
      {messages.map(message => (
        <p key={message.id}>
          <b>{message.role}</b> {message.parts.map(part => (part.type === 'text' ? part.text : '')).join('')}
        </p>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form
        onSubmit={event => {
          event.preventDefault()
          void sendMessage({ text })
          setText('')
        }}
      >
        <input aria-label="Message" value={text} onChange={event => setText(event.target.value)} />
        {/* the keys make two buttons of them: one that turns from Stop to Send while it is clicked would submit */}
        {status === 'ready' || status === 'error' ? (
          <button key="send" disabled={text.trim() === ''}>Send</button>
        ) : (
          <button key="stop" type="button" onClick={stopAnswer}>Stop</button>
        )}
      </form>
    </main>
  )
}
