// Package proof is what the pods of "kubectl meshcni test" are asked to prove of themselves, and what they answer: package
// internal/validate makes the connections. Who asks and who answers may be of different versions: fields are added, and never change their
// meaning.
package proof

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Question asks a container of a pod to prove that the rules of its mesh are in force.
type Question struct {
	// Dialect is the mesh.
	Dialect string `json:"dialect"`
	// Pod and Namespace are what the rules follow from. Namespace is nil if it is not known.
	Pod       *corev1.Pod       `json:"pod"`
	Namespace *corev1.Namespace `json:"namespace,omitempty"`
	// ProbePort is the port of trial connections; 0: validate's own.
	ProbePort uint16 `json:"probePort,omitempty"`
}

// Trial is one connection that was made, or waited for.
type Trial struct {
	// Family is IPv4 or IPv6; empty: either.
	Family string `json:"family,omitempty"`
	// What is the aspect of redirection, such as outbound.
	What string `json:"what"`
	// Works: it arrived where the rules send it. Detail tells where, or what became of it.
	Works  bool   `json:"works"`
	Detail string `json:"detail"`
}

// Answer is the container's termination message.
type Answer struct {
	Trials []Trial `json:"trials"`
	// Error says why there are no more trials; empty: there is nothing else to try as this container's user.
	Error string `json:"error,omitempty"`
}

// MaxDetail bounds a detail, in bytes: Kubernetes keeps 4,096 bytes of a termination message.
const MaxDetail = 200

// Parse reads an answer.
func Parse(message string) (a Answer, err error) {
	if err = json.Unmarshal([]byte(message), &a); err != nil {
		err = fmt.Errorf("what it says is no answer: %w", err)
	}
	return a, err
}
