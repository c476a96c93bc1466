// Package plugin is a CNI plugin that redirects a pod's traffic to its mesh proxy. [Plugin.Exec] is the whole program. [Plugin.Run] is
// the same from environment and stdin to stdout and exit code, so it can be tested without a process and built into another one:
//
//	p := plugin.Plugin{Dialects: builtin.All(), OpenPods: kubepod.Open}
//	p.Exec()
//
// It is a chained plugin of CNI specification 0.3.0 to 1.1.0 (ADD, CHECK, DEL, GC, STATUS, VERSION). It assigns no
// addresses, makes no interfaces, and prints the previous plugin's result.
//
// # ADD
//
// ADD finds out as early as possible that a pod is outside the mesh:
//
//	no K8S_POD_NAME or K8S_POD_NAMESPACE in CNI_ARGS     pass
//	the node agent's own pod                             pass; it must start when nothing else works
//	an excluded namespace                                pass
//	the runtime passed the pod's annotations, and they   pass
//	alone rule the pod out
//	                                                     from here on CNI_NETNS must be a pod's network namespace
//	ask the node's agent for the pod with K8S_POD_UID    without an answer in 50 ms, or with "agent": "off":
//	GET the pod, until its UID is K8S_POD_UID            fail after add_deadline: a pod of the mesh must not start
//	                                                     without rules
//	no dialect selects the pod                           pass
//	plan and apply the rules                             all rules, or none and an error; where the mesh's proxy is on
//	                                                     the node, the agent applies them and hands the pod over
//
// With several dialects, what passes a pod early must hold for each of them, and the first that selects the pod has it; see
// dialect.Set.
//
// The pod's addresses are those of prevResult, except for interfaces outside the pod. If it has none, because the runtime
// calls the plugin unchained, they are those of the interfaces in the namespace. The pod's status is not used: at ADD it is
// empty or describes an earlier sandbox.
//
// A pod is let through, with a warning, if its kernel has an address family that its mesh does not capture, whatever
// addresses it has. "uncaptured_family": "drop" discards that family's TCP instead. A container that the rules may take for
// the proxy bypasses the mesh and is warned of; "refuse_proxy_uid": true and "refuse_net_raw": true refuse its pod (see
// dialect.Options). A pod of a sandboxed runtime, by the name of its RuntimeClass, is refused but with "allow_sandboxed": true. See
// dialect.Plan, which decides all of this for others too.
//
// Every ADD that succeeds, including one that passes a pod over, leaves a record in run_dir; see package attachment. If the
// record cannot be written, the pod starts with a warning. DEL and GC remove records and do nothing else, since rules
// disappear with the namespace.
//
// Without a previous result, ADD prints a result that has only the version. A runtime that needs addresses will complain;
// one that merges results (Multus) is content.
//
// # CHECK
//
// CHECK compares the live rules with those in the attachment's record, through the backend that applied them. It asks
// neither the API server nor the configuration, so annotations that have changed since, or a newer plugin, make no
// difference. Since a runtime recreates a pod whose CHECK fails, CHECK fails only if redirection is no longer in force, or
// if the namespace is the host's, is none or is gone. Whatever it cannot tell passes with the outcome "unknown": the record
// is missing, unreadable or of another namespace, the backend is gone, or the live rules cannot be read.
//
// # STATUS
//
// STATUS fails if no ADD could work now. Then the runtime starts only pods on the host's network: none outside of
// the mesh, and no agent on the pod network. So with "ready_without_agent": true a missing kubeconfig does not fail STATUS.
// It still fails the ADD of a pod that may be in the mesh.
//
// # Errors
//
// Errors are one JSON object on stdout and exit code 1. Codes below 100 and 999 are those of the CNI specification and its
// library:
//
//	1    the configuration's cniVersion is not supported, or too old for the verb
//	4    an environment variable is missing or malformed; the message names it
//	5    stdin cannot be read
//	6    stdin is no JSON object
//	7    the configuration, or the pod's annotations, are wrong; all mistakes are named
//	8    CNI_NETNS is the host's namespace, is none, or is gone
//	11   the pod could not be read, or the rules applied, in time: the API server is down, slow or says no, there is no
//	     such pod, or it has another UID; or the agent could not attach the pod to the node's proxy
//	50   an ADD cannot work: no usable kubeconfig, firewall backend or agent
//	100  CHECK: redirection that was set up is no longer in force
//	101  the rules could not be applied; earlier ones are still in force
//	999  a fault of the plugin
//
// The plugin ignores CNI_NETNS_OVERRIDE, by which a runtime may tell plugins to take their own namespace for a pod's: rules
// in the host's namespace would capture the node's traffic. For a namespace that is gone it does not use code 3, which
// tells the runtime not to clean up after the plugins before this one.
//
// # Logs
//
// Logs are JSON, one record per line, on stderr, in run_dir/plugin.log and on the agent's socket run_dir/log.sock. Each
// decision is a record with msg "decision" at level info; its fields are those of [Event].
package plugin
