// Package agentsock is the node agent's socket, run_dir/agent.sock: its protocol, a client for the plugin and for people's
// programs, and a server for agents.
//
// # Who may connect
//
// The socket is a Unix stream socket with mode 0600. A [Server] answers only peers of user 0, as the kernel names them when
// they connect (SO_PEERCRED), and a [Client] believes only a server of user 0 or of its own user.
//
// # The protocol, version 1
//
// A connection carries one request and one answer. The client then closes it. If the client closes it earlier, the server
// stops working on the request. Request and answer are frames:
//
//	bytes   meaning
//	0–3     length of what follows, big-endian; at least 2
//	4       version of the protocol, 1
//	5       kind
//	6–      body
//
// The length of a request is at most maxRequest, that of an answer at most 8 MiB. An answer has the kind of its
// request plus 128, or 255 for an error.
//
//	kind  request  body                                     body of the answer
//	1     Pod      JSON of a [status.ID]                length of the pod (4 bytes, big-endian), the pod, the namespace
//	2     Attach   JSON of an [Attachment]; with one file   JSON of an [Attached]
//	3     Detach   JSON of an attachment.ID                 empty
//	4     Pods     empty                                    JSON, a list of [status.Pod]
//	5     Release  empty                                    JSON, a list of [status.Pod]
//	6     Ready    empty                                    empty
//	7     Release  JSON of a [ReleaseOptions] that is not zero     JSON, a list of [status.Pod]
//
// Pod and namespace are protobuf messages of k8s.io/api/core/v1. The namespace is empty if the agent does not read
// namespaces. Attach carries the network namespace as one open file (SCM_RIGHTS) beside its first byte. A file with another
// request, or a second file, is closed and makes the request malformed.
//
// The body of an error is JSON: {"code":"step","message":"no proxy is connected","step":"hand-over","reason":"no-proxy"}.
// Its code is one of
//
//	unknown      the agent does not know the pod: [ErrUnknown]
//	unsupported  the agent does not serve the request: [ErrUnsupported]
//	step         an Attach failed on its way: [*StepError]; only this one has a step and a reason
//	busy         too many requests at once: [ErrBusy]
//	version      the request has another version than the agent: [ErrUnsupported]
//	malformed    the request is none
//	failed       everything else
//
// For example, a request for a pod without a name, and the answer that the agent does not know it:
//
//	00 00 00 12  01  01  {"uid":"7f3c0a"}
//	00 00 00 40  01  ff  {"code":"unknown","message":"the agent does not know the pod"}
//
// The first six bytes of a frame and the body of an error are the same in all versions, so that a client of another version
// gets an answer that it understands. Unknown keys of JSON objects are ignored.
package agentsock
