// Package nodecontrol hands pods to a mesh proxy that runs once on the node, takes them back, and sees to it that no pod
// silently falls out of its care.
//
// [Pods], [Namespaces], [Probes] and [Status] are what else a node has; package nodeagent has those of a real one.
//
// # Whose is what
//
// Package internal/node/podrules has the way to a pod's rules, for this package and package repair alike, and internal/node/keeper the memory of pods, the
// queue and the rounds. This one has the pods of meshes whose proxy is
// on the node: one loop takes each from any state to the one that it should have, whatever ended it before. Pods with a proxy of their own
// are package repair's, which acts only within its budgets.
//
// # Captured
//
// A pod is reported captured only if the kernel shows its rules and the proxy's listeners in its network namespace, and the
// proxy that is connected has accepted that namespace; while none is connected, the last one had. The annotation tells peers
// whether to use the tunnel: it is set last, removed first, stays whatever is missing meanwhile, and is never believed.
//
// # Joining and leaving
//
// Package nodeproxy has the order.
//
// TCP connections that are open, or being made, when a pod joins go on outside the mesh. The namespace's conntrack is told of each
// before the rules come; where the kernel cannot be told (no ctnetlink), those that conntrack did not know are reset. DNS queries
// go to the proxy from the next on.
//
// Connections through the proxy when a pod leaves go on until they end or the proxy ends them, which both ends then see. ztunnel ends
// all of a pod when it is told to let go of it, and peers use its tunnel until they have heard that the pod has left. So the proxy is
// told when nothing was carried for 3 s, after DrainMinimum at the earliest and after DrainTimeout at the latest. Bytes that come by
// the tunnel tell of what lives for milliseconds. Meanwhile rules stay in the
// namespace that redirect nothing and keep the kernel translating these connections' packets; the pod is outside, and its detail says
// how many there are. DNS queries go straight from the next on. A pod that is gone is not held back.
//
// A controller that starts while no proxy is connected cannot tell whose listeners there are, so it reports such pods as drifted and
// leaves them as they are. While the controller does not run, nothing changes.
//
// # Mending
//
// Each pod is compared with the kernel once in VerifyInterval, after each change of it or its namespace, and when a proxy comes
// or goes; with the set of probes, as it was at most a tenth of VerifyInterval before. What is missing is mended: rules, listeners,
// the probes' exemption, the annotation, all of it in a new namespace. Rules that were in force and are not as they were are
// written again within a budget of the pod's namespace. A failure is tried again after 0.25 s, then after twice as long each time, at most 30 s; what failed and since
// when is in [Controller.Pods].
//
// Pods are worked on in parallel, and each by one worker at a time, by UID. A name decides nothing, and each write to the API
// server has the UID as its precondition.
//
// # Crashes
//
// All that the controller remembers can be found out again: from the kernel, the proxy, the plugin's records and the store of
// namespaces. So it may be killed at any moment, and the next one goes on. It acts only once all pods are known, and a proxy
// that connects earlier waits for its snapshot.
package nodecontrol
