// Package zds speaks the protocol by which a node's agent hands pods to Istio's ztunnel, and to any other proxy that speaks
// it: [Server] is the agent's half and a nodeproxy.Proxy, [Client] the proxy's, for proxies written in Go.
//
// # The protocol
//
// The agent listens on a Unix socket of type SOCK_SEQPACKET. Each packet is one protobuf message of package
// istio.workload.zds, at most 1,024 bytes. The proxy connects and sends a hello. The agent sends the snapshot: an Add
// for each pod that the proxy is to have, with the pod's network namespace as a file by SCM_RIGHTS, or a Keep for a pod
// whose namespace it does not have. It ends with SnapshotSent: what was neither added nor kept is no longer the proxy's.
// From then on it sends an Add or a Del for each change. The proxy answers each request with one ack, and an error in it
// refuses the request. Requests and acks have no number: only their order tells which ack belongs to which.
//
// # What the server promises
//
//   - A request is sent only after the ack of the one before. An ack that is late, missing, malformed or not asked for closes
//     the connection, so it is never taken for the ack of another request. The proxy connects again and gets a snapshot.
//   - A connection gets exactly one SnapshotSent, and no Keep after it. What changes while the snapshot is on its way is told
//     afterwards, in order; a pod that was removed meanwhile is not added.
//   - A namespace's file is used only through a reference that keeps it open, never by its number alone.
//   - The socket's mode is 0600, and a peer whose UID is not allowed is turned away before a byte is read.
//   - Connections are counted from their accept. At most 16 wait for their hello, for as long as an ack may take, and at most 16 proxies are
//     served. Beyond that the pod, or outside of pods the control group, with the most connections loses its oldest to one of another,
//     but is left two; the others of the crowd are turned away. A process that connects again and again is served at a pace, and few of its
//     lines are logged.
//
// While one proxy replaces another, both are connected. New pods go to the one that came last, removals to all. If the last
// one goes, the one before takes its place, and gets the pods that it lacks.
//
// # Out of scope
//
// Whether the proxy does listen in a pod that it has accepted is for the caller to see. Nothing is sent to an idle proxy,
// since the protocol has no message for that: the socket tells at once when a proxy is gone, not when it hangs.
//
// The messages are encoded by hand, with protobuf's wire package. Generated code would register the messages' names, and a
// program that also links Istio's own package would panic at its start. Sockets of this type need Linux.
package zds
