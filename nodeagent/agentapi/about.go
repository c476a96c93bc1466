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
	// Path is where the agent has it, and Host where the host has it, as the agent understands its settings.
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

// Feature is something that rules need of the kernel.
type Feature struct {
	// Name is one of the constants. A newer agent may know others.
	Name FeatureName `json:"name"`
	// Has is the kernel's answer.
	Has Answer `json:"has"`
	// Backend is the one by which it was tried. Empty: it was not, or takes none.
	Backend string `json:"backend,omitempty"`
	// Detail is the cause of one that is missing, or not known.
	Detail string `json:"detail,omitempty"`
}

// FeatureName names a feature of the kernel.
type FeatureName string

// The features.
const (
	// Redirection, for every pod with a sidecar: connection tracking, address translation, the owner of a socket.
	Redirection FeatureName = "redirect"
	// RedirectionIPv6 is the same for IPv6.
	RedirectionIPv6 FeatureName = "redirect-ipv6"
	// TProxy, for pods whose proxy is to see the clients' addresses: TPROXY, marks, policy routing.
	TProxy FeatureName = "tproxy"
	// DNSZones, for the capture of DNS: zones of connection tracking.
	DNSZones FeatureName = "dns-zones"
	// NodeProxy, for pods whose proxy is on the node: marks on packets and connections.
	NodeProxy FeatureName = "node-proxy"
	// IPv6 is whether the node has the protocol at all.
	IPv6 FeatureName = "ipv6"
)

// Answer is yes, no or unknown.
type Answer string

// The answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
)
