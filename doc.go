// Package meshcni is the map of this repository: a library for CNI plugins that redirect a pod's traffic to its mesh
// proxy, and the programs made from it. The package itself has the names under which a product appears, [Identity].
//
// Data flows one way. Each step makes a value that you can print, compare and test without a kernel:
//
//	Pod → Decision → Redirect → Ruleset → iptables text or netlink messages → kernel
//
// # Values: no I/O, no environment, no programs
//
//	status                  a pod's state, the code of the reason, and what people are told of it
//	warning                 a pod's settings that were ignored or tolerated
//	selection               is this pod in the mesh, and why
//	redirect                which of a pod's connections go through its proxy, as a typed value
//	redirect/ruleset        the firewall rules as values: text, parse, diff, transition
//	redirect/trace          what happens to a packet, and why
//	dialect                 a mesh as data and one function; Dialect.Plan decides on a pod
//	dialect/istio           Istio's sidecars
//	dialect/ambient         Istio's ambient mode, whose proxy is recognized by a packet mark
//	dialect/linkerd         Linkerd
//	dialect/kuma            Kuma
//	dialect/consul          Consul
//	explain                 what becomes of a pod, why, and what to do, for people and programs
//	mesh                    a mesh's facts for people and commands: its injector, init container and own plugin; ours are in internal/facts
//	dialect/builtin         the list of these five
//	conflist                CNI conflists, edited in one insertion
//	plugin/netconf          the plugin's configuration: keys, defaults, Parse, Marshal, Find
//
// redirect, redirect/ruleset and redirect/trace need the standard library only:
// no Kubernetes types, no os/exec, no net/http.
//
// # Effects
//
//	netnsexec               run code and programs in a network namespace that is proven to be a pod's
//	redirect/apply          apply, check and remove rules in a namespace: iptables, or nftables by netlink
//	plugin                  the CNI verbs as a value
//	plugin/kubepod          one pod from the API server, with one GET
//	nodeproxy               what a mesh's proxy that is on the node has to do with the agent
//	nodeproxy/zds           the protocol of Istio's ztunnel, both halves
//	installer               install the plugin on a node, keep it there, remove it
//	repair                  find pods that started without rules, and label, evict or repair them
//	nodeagent               all of these in one process: the agent of a node, as a value
//	nodeagent/agentapi      what an agent says of its node and pods, and a client
//
// # Command lines, for your own mesh too
//
//	cmd/nodecmd             nodeagent's: flags, environment, files, and commands on the node
//	cmd/repaircmd           the repair controller's
//	cmd/taintcmd            the taint controller's
//	cmd/kubectlcmd          kubectl meshcni's
//	cmd/redirectcmd         explain, rules, trace, compare, show, apply, check, cleanup, validate
//
// # For your tests
//
//	redirect/rulesettest    one line says where a packet must end up; no root, no kernel
//	dialect/dialecttest     a dialect's settings, and its packets in network namespaces
//	netnsexec/netnstest     those namespaces: a pod, the outside, a virtual machine
//	plugin/plugintest       the pods, the agent and the namespace that a test needs, and their failures
//
// # Programs
//
//	cmd/meshcni             the plugin
//	cmd/meshcni-node        the node agent: install, watch, repair
//	cmd/meshcni-repair      the repair controller alone
//	cmd/kubectl-meshcni     kubectl meshcni: status, explain, rules, trace, show, check
//	migrate                 kubectl meshcni migrate: from another plugin, or init containers, to this one
//	cmd/meshcni-redirect    redirectcmd for this module's dialects; needs no cluster
//
// # The rest
//
//	deploy                  Helm chart, plain manifests, roles, dashboard, alerts
//	docs                    documentation; tests run its commands
//	examples                programs to copy
//	release                 makes images, archives and bills of materials
//	e2e                     tests of the chart, with a container runtime and with a cluster of one node
//
// # internal, by rooms
//
//	internal/node           what an agent knows of its node's pods, and how it acts on them: inventory and records, judge, the watch, the keeper of its memory and queue, namespaces, limits, the agent's socket
//	internal/nodecontrol    ambient's controller: hands pods to the node's proxy and takes them back; its decisions are in machine
//	internal/probes         lets the kubelet's probes into ambient pods
//	internal/readytaint     the taint controller
//	internal/kernel         what the kernel is asked and told: netlink, nftables, sockets, connection tracking, /proc
//	internal/api            what the API server is asked: lists, patches, rights, watches that went silent
//	internal/files          files that others read or write at the same time
//	internal/program        what each program has: HTTP server, log, version, codes
//	internal/diagnosis      what people ask: a running pod's state, two rulesets compared, a cluster's agents, the bundle
//	internal/validate       connections from inside a pod that prove its redirection
//	internal/facts          the five meshes' facts
//	internal/playground     the page that explains a pod in the browser
//	internal/text           texts and settings that somebody else wrote: printed, shortened, parsed
//	internal/testing        what tests need: API server, processes, namespaces, fakes; tests of the scripts in .ci
//	internal/repotest       holds this repository's shape
//	internal/doctest        runs what the documentation shows
//
// CONTRIBUTING.md has the way from here to what is often looked for.
//
// cmd, migrate, examples, e2e and release are modules of their own. internal/repotest
// holds which package may import which.
package meshcni
