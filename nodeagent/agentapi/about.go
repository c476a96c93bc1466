package agentapi

import (
	authorizationv1 "k8s.io/api/authorization/v1"
)

// Right is something that a service account has to be allowed.
type Right struct {
	// Account is the service account, in the agent's own namespace. Empty: the agent's.
	Account string `json:"account,omitempty"`
	// Attributes are the request's. An empty namespace or name means all. A field selector means that no other request of this kind is
	// made: it names the agent's node.
	Attributes authorizationv1.ResourceAttributes `json:"attributes"`
	// For is its purpose.
	For string `json:"for"`
}

// Place is a directory of the node that the agent works in.
type Place struct {
	// Flag is the agent's flag that names it, without the dashes.
	Flag string `json:"flag"`
	// Path is the agent's own path of it, and Host the host's, as the agent understands its settings.
	Path string `json:"path"`
	Host string `json:"host"`
	// Writes: the agent writes there.
	Writes bool `json:"writes,omitempty"`
	// Error is the fault that keeps the agent from using it, such as that it is read-only. Empty: there is none.
	Error string `json:"error,omitempty"`
}

// BinDir is a directory of the runtime's plugins.
type BinDir struct {
	Path string `json:"path"`
	// Plugin is the program that has the plugin's name there.
	Plugin Program `json:"plugin"`
	// Lacks are those of the network's plugins, by their types, that are not there.
	Lacks []string `json:"lacks,omitempty"`
	// Error is the cause of a read that failed. Then nothing else is known of the directory.
	Error string `json:"error,omitempty"`
}

// Program is the program that has the plugin's name.
type Program string

// The programs.
const (
	Current Program = "current" // the one that the agent installs
	Another Program = "another" // another one, such as that of another version
	Missing Program = "missing" // there is none, or none that can be run
)

// Answer is yes, no or unknown.
type Answer string

// The answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
)
