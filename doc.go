// Package meshcni is the map of a module that puts a pod's traffic through its
// mesh proxy, by rules that a CNI plugin applies before the pod starts. The
// package itself is empty; take the parts that you need.
//
// Data flows one way, and each step is a value that can be printed, compared
// and tested where there is no kernel:
//
//	Pod → Decision → Redirect → Ruleset → iptables text or netlink messages → kernel
//
// # Values: no I/O, no environment, no programs
//
//	selection                which pods are in the mesh, each answer with a stable reason
//	redirect                 which connections of a pod go through its proxy, as a typed value
//	redirect/ruleset         the firewall program: text, parse, diff, transition, nftables
//	redirect/trace           what becomes of a packet, and why
//	redirect/compare         whether two programs do the same, by a packet of each kind
//	dialect                  what a mesh is to the engine: data and one function
//	dialect/istio            Istio's sidecars
//	dialect/ambient          Istio's ambient mode: a proxy on the node, known by the mark of its packets
//	dialect/linkerd          Linkerd
//	dialect/kuma             Kuma
//	dialect/consul           Consul
//	conflist                 CNI network lists, edited in one insertion
//
// redirect, redirect/ruleset and redirect/trace need the standard library only:
// no Kubernetes types, no os/exec, no net/http.
//
// # Effects
//
//	netnsexec                code and programs run inside a network namespace that is proven to be a pod's
//	redirect/apply           a Ruleset into a namespace, by iptables or by native nftables; check; remove
//	redirect/validate        proof with real connections, from inside the pod, that redirection works
//	plugin                   the CNI verbs as a value
//	plugin/attachment        the node's own record of what was done to each pod
//	plugin/kubepod           one pod from the API server with one GET
//	installer                the plugin onto a node, kept there, and taken away
//	cmd/nodecmd              the agent's command line as a function, for your own mesh too
//	repair                   pods that started without rules, found and dealt with
//	cmd/repaircmd            the repair controller's, likewise
//	cmd/redirectcmd          that of explain, rules, trace and show, likewise
//
// # For your tests
//
//	redirect/rulesettest     one line says where a packet must end up; no root, no kernel
//	dialect/dialecttest      a dialect's fates in a world of network namespaces
//	netnsexec/netnstest      that world: a pod, the outside, a virtual machine
//	plugin/plugintest        an API server with the pods and the failures that a test wants
//	repair/repairtest        a cluster's pods in memory
//
// # Programs
//
//	cmd/meshcni              the plugin
//	cmd/meshcni-node         the node agent: install, watch, repair
//	cmd/meshcni-repair       the repair controller alone
//	cmd/meshcni-redirect     explain, rules, trace, show, apply, check, cleanup, validate: no cluster needed
//
// # Around them
//
//	deploy                   the Helm chart, plain manifests, roles, dashboard and alerts
//	docs                     for users; its commands are run by tests
//	examples                 runnable
//	release                  images, archives, bills of materials (a module of its own)
//	e2e                      a container runtime, and a cluster of one node (a module of its own)
//
// Which package may import which is a test, in internal/repotest.
package meshcni
