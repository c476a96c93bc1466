// Package agentsock is the node agent's socket, run_dir/agent.sock: its protocol, a client for the plugin and for people's
// programs, and a server for agents.
package agentsock
