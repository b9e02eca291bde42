'use client'
import { useChat } from '@ai-sdk/react'
import { useEffect, useMemo, useState } from 'react'
import { type Access, hubAccess, hubTransport } from '../lib/hub'

export default function Page() {
  const [access, setAccess] = useState<Access | null>(null)
  useEffect(() => {
    document.cookie ||= 'user=ada; path=/; samesite=strict' // instead of a sign-in
    void hubAccess().then(setAccess)
  }, [])
  return access === null ? <p>…</p> : <Chat access={access} />
}

function Chat({ access }: { access: Access }) {
  const transport = useMemo(() => hubTransport(access.hub), [access.hub])
  const { messages, sendMessage, status, stop } = useChat({ id: `${access.prefix}chat`, transport, resume: true })
  const [text, setText] = useState('')
  return (
    <main>
      {messages.map(message => (
        <p key={message.id}>
          <b>{message.role}</b> {message.parts.map(part => (part.type === 'text' ? part.text : '')).join('')}
        </p>
      ))}
      <form
        onSubmit={event => {
          event.preventDefault()
          void sendMessage({ text })
          setText('')
        }}
      >
        <input value={text} onChange={event => setText(event.target.value)} />
        {status === 'ready' ? <button>Send</button> : <button type="button" onClick={() => void stop()}>Stop</button>}
      </form>
    </main>
  )
}
