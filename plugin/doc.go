// Package plugin is a CNI plugin that redirects a pod's traffic to its mesh proxy, as a value: [Plugin.Run] is the whole
// program, from environment and stdin to stdout and exit code, so it can be tested without a process and built into
// another one.
//
//	p := plugin.Plugin{OpenPods: func(kubeconfig string) (plugin.Pods, error) { … }}
//	code := p.Run(ctx, plugin.IO{Args: os.Args, Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
//
// It is a chained plugin of CNI specification 0.3.0 to 1.1.0 (ADD, CHECK, DEL, GC, STATUS, VERSION). It gives no
// addresses and makes no interfaces; it prints the previous plugin's result.
//
// # ADD
//
// Whoever can be told to be outside the mesh is, as early as it can be told, and costs nothing further:
//
//	no K8S_POD_NAME or K8S_POD_NAMESPACE in CNI_ARGS     pass
//	the node agent's own pod                             pass; it must start when nothing else works
//	a namespace that configuration excludes              pass
//	the runtime passed the pod's annotations, and they   pass
//	alone rule it out
//	                                                     from here on CNI_NETNS must be a pod's network namespace
//	GET the pod, until it is there and is the one that   else fail: a pod of the mesh must not start without rules
//	K8S_POD_UID names, or add_deadline is over
//	the dialect's policy does not select it              pass
//	build, render, apply                                 all rules or none, and an error
//
// The pod's addresses are prevResult's, or, when it has none (a runtime that calls the plugin
// unchained), those of the interfaces in the namespace. Status.PodIPs is not asked: at ADD it is empty or that of a
// sandbox before this one. Addresses that prevResult gives to interfaces outside of the pod don't count.
//
// A pod whose kernel has a family that its mesh does not capture is let through and warned of, whatever addresses it has,
// or, with "uncaptured_family": "drop", has that family's TCP discarded.
//
// A container that may pass for the proxy leaves the pod past the mesh, so it is warned of, or, with
// "refuse_proxy_uid": true, the pod is refused; see dialect.Bypass. All of this is dialect.Plan, which others ask too.
//
// Each ADD that succeeds, also one that passes a pod over, leaves a record in run_dir; see package attachment. One that
// cannot be written is a warning: the pod starts all the same.
//
// DEL and GC take such records away, and do and need nothing else: rules go with the namespace.
//
// # CHECK
//
// CHECK compares the live rules with those that the attachment's record says were set up, by the backend that set them up.
// It asks neither the API server nor the configuration: a pod whose annotations have changed since, and rules that another
// version or dialect would render otherwise, make no difference. A runtime that is told of one makes the pod anew, so there is one only where
// redirection is no longer in force. What cannot be told passes, and is logged with the outcome "unknown": there is no record, it
// cannot be read or is of another namespace, its backend is gone, or the live rules cannot be read. A pod that was passed
// over passes. A namespace that is the host's, is none or is gone is refused as ever.
//
// STATUS says whether an ADD could work now. A runtime that is told that it could not starts no pod, except those on the
// host's network. For an agent that is not, and that is to write the kubeconfig, "ready_without_agent": true makes a
// kubeconfig that is not there yet no failure of STATUS. It still is one of the ADD of a pod that may be in the mesh.
//
// # Without a previous result
//
// ADD then prints a result that has the version only. A runtime that wants addresses will say so itself; one that
// merges results (Multus) is content.
//
// # Errors
//
// Errors are one JSON object on stdout and exit code 1. Codes below 100 and 999 are those of the CNI specification
// and of its library:
//
//	1    the configuration's cniVersion is not supported, or is too old for the verb
//	4    an environment variable is missing or malformed; the message names it
//	5    stdin cannot be read
//	6    stdin is no JSON object
//	7    the configuration, or the pod's annotations, say something wrong; all of it is named
//	8    CNI_NETNS is the host's namespace, is none, or is gone
//	11   the pod could not be had, or the rules not be applied, in time: the API server is down, slow or says no, there
//	     is no such pod, or it has another UID
//	50   an ADD cannot work: no usable kubeconfig, no usable firewall backend
//	100  CHECK: redirection that was set up is no longer in force
//	101  the rules could not be applied; those that were there before still are
//	999  a fault of the plugin
//
// CNI_NETNS_OVERRIDE, by which a runtime may ask plugins to take their own namespace for a pod's, is not followed: rules
// in the host's namespace would capture the node's traffic. A namespace that is gone is not code 3, which tells the
// runtime not to clean up after the plugins before this one.
//
// # Logs
//
// One JSON record a line, to stderr, to run_dir/plugin.log and to the agent's socket run_dir/log.sock. Each decision is
// a record with msg "decision" at info: reason has one of the stable codes of package selection, outcome is passed,
// redirected, same (the rules were there), checked, unknown (CHECK could not tell), or failed; bypasses are the ways past the mesh that the pod leaves
// open: ipv4 or ipv6 for a family that is not captured, proxy-id for a container that runs as the proxy.
package plugin
