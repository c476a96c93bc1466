// Package nodeagent runs the agent of a node: it installs the plugin and keeps it there, gives the plugin its pods, finds and
// repairs pods that started without their rules, hands pods to a mesh's proxy on the node, and says how all of that is. It is what
// meshcni-node runs, as a value:
//
//	c := nodeagent.DefaultConfig(meshcni.Identity{Name: "acme"})
//	c.Node = os.Getenv("NODE_NAME")
//	agent, err := nodeagent.New(nodeagent.Options{Dialects: meshes, Config: c, API: api})
//	err = agent.Run(ctx)
//
// Each part is optional: [Config].InstalledElsewhere, the zero [Config].Repair, [Config].Ambient and empty addresses leave it
// out. Whoever wants one part alone imports package installer or repair, and links no more than that.
//
// # One process
//
// Controllers of the embedder's own run beside the agent's in the same process. [Agent.Run] starts no signal handler, sets no
// global and writes to no standard stream. The agent serves HTTP at the addresses of its [Config], or by [Agent.ServeHTTP] in the
// embedder's server; it is a [prometheus.Collector] for the embedder's registry.
//
// # Two agents on a node
//
// While an update starts an agent beside the one before it, the newer one waits until it could do its work, and then takes over:
// the installation by package installer's lease, the pods of the node's proxy by a lock in the run directory. If it dies, the older
// one goes on. An agent that begins without the proxy's pods has the one before it, or the run directory's journal, release them,
// and is not ready before that.
//
// # Settings that change
//
// [Agent.Reload] takes changed settings, or [Options].Load is asked for them. The agent keeps those that it has if the new
// ones are wrong, or need a restart. A part whose settings change starts anew; the others go on.
package nodeagent
