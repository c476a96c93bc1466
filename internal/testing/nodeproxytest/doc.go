// Package nodeproxytest is a node's proxy for tests: it speaks package zds, opens real sockets in the namespaces that it is
// handed, and keeps every rule that Istio's ztunnel keeps, the fatal ones too. It can be made to refuse, to be slow, to lie
// and to die. It runs in the test's process ([Start]) or in one of its own ([StartProcess]).
//
// # What it does in a pod
//
//	[::]:15001               connects to where the connection was to go (SO_ORIGINAL_DST)
//	[::]:15006               the same, from the client's address
//	[::]:15008               an HTTP/1.1 CONNECT; then the same as 15006, to the address in it
//	127.0.0.1, [::1]:15053   DNS, UDP and TCP: answers, or forwards to Options.Upstream
//
// All of its sockets have the mark, 0x539, and SO_REUSEPORT, so that two proxies can listen side by side. Connections are
// copied both ways, each until its own end. A listener that closes resets what waits in its queue, unless net.ipv4.tcp_migrate_req is
// 1 in the namespace: neither this proxy nor ztunnel sets it.
//
// # What it answers
//
//	Add, same pod, same namespace           ack; nothing happens
//	Add, same pod, another namespace        the old sockets and connections are cut, the new sockets open
//	Add that cannot listen                  nack; tried again every Options.Retry, and not ready meanwhile
//	Add without an identity, a second SnapshotSent, Keep after it    nack, and the program ends with code 1
//	Del                                     ack; listeners and connections are closed at once; before SnapshotSent, not until then
//	SnapshotSent                            ack; the same for all that was neither added nor kept
//
// An Add is acknowledged whether or not the control plane has told the proxy about the pod; see Faults.Unknown for what becomes of
// connections until it has. Without the agent, the pods stay, and it connects again, with a pause that doubles from 20 ms to 15 s;
// what could not listen is forgotten. SIGTERM closes the listeners, and cuts after 25 s what is still open.
//
// # Limits
//
// There is no mesh: no encryption, no identities, no policy, and 15008 is not HTTP/2. It needs Linux and root.
package nodeproxytest
