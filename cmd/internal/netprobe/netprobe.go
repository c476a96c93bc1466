// Package netprobe is what "kubectl meshcni test" runs in its pods, in place of an application and of a mesh's proxy. It accepts
// connections and says at which port, and where they were to go; and it connects where it is asked to, over its loopback interface
// only. Who asks and who answers may be of different versions: fields are added, and never change their meaning.
package netprobe

import (
	"net/netip"
	"time"
)

// The paths of the control port.
const (
	// ReadyPath answers once all ports listen.
	ReadyPath = "/v1/ready"
	// DialPath takes the address and port to connect to as its query "to". It answers a [Dialed].
	DialPath = "/v1/dial"
)

// Patience bounds the time from a connection's start to its answer. Within a node that is a millisecond; the rest is
// for a SYN that is sent again.
const Patience = 5 * time.Second

// Answer is sent over a connection as a line of JSON, before it is closed.
type Answer struct {
	// Name is that of who answers.
	Name string `json:"name"`
	// Port received the connection.
	Port uint16 `json:"port"`
	// Original is its destination before that was changed. Zero: the kernel does not know.
	Original netip.AddrPort `json:"original,omitzero"`
	// From is the client.
	From netip.AddrPort `json:"from"`
}

// Dialed is the result of a connection. Without an Answer, Error gives the reason.
type Dialed struct {
	Answer *Answer `json:"answer,omitempty"`
	Error  string  `json:"error,omitempty"`
}
