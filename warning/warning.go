// Package warning has the warnings about a pod's settings that were ignored or tolerated. Who decides on a pod and who reads its settings
// gives them, without one needing the other.
package warning

import "fmt"

// Code is the kind of a [Warning]. Codes are stable: never renamed, never reused.
type Code string

// The codes. Dialects may have more, such as dialect.WarningContested.
const (
	// Invalid: the value cannot be read, so the setting counts as not set.
	Invalid Code = "invalid-value"
	// Deprecated says that the setting is read under an old key.
	Deprecated Code = "deprecated-key"
	// Unknown: nothing is known of the key, so it has no effect.
	Unknown Code = "unknown-key"
	// NoEffect: the setting is known, and has no effect on this pod.
	NoEffect Code = "no-effect"
	// Contradiction: the setting contradicts another part of the pod.
	Contradiction Code = "contradiction"
	// Fallback: what would decide is not known, so something else does.
	Fallback Code = "fallback"
	// FamilyAbsent: the kernel lacks a family that the mesh captures.
	FamilyAbsent Code = "family-absent"
	// FamilyDropped: the pod has an address of a family whose TCP is dropped, because the mesh does not capture it.
	FamilyDropped Code = "family-dropped"
	// BeforeProxy: init containers run before the pod's proxy, and have no network. explain says so, and no log.
	BeforeProxy Code = "before-proxy"
	// ProxyUser: the proxy container does not run as what the rules know the proxy by, so its connections would be redirected to itself.
	ProxyUser Code = "proxy-user"
)

// Codes lists every code of this package.
func Codes() []Code {
	return []Code{Invalid, Deprecated, Unknown, NoEffect, Contradiction, Fallback, FamilyAbsent, FamilyDropped, BeforeProxy, ProxyUser}
}

// Warning reports a setting that was ignored or tolerated. In JSON it is its text.
type Warning struct {
	Code Code
	// Key is the setting's annotation, label or variable; empty when the warning is about no setting.
	Key string
	// Text is the warning as a sentence. Its wording may change.
	Text string
}

// New makes a Warning, with its text as fmt.Sprintf formats it.
func New(code Code, key, format string, args ...any) Warning {
	return Warning{Code: code, Key: key, Text: fmt.Sprintf(format, args...)}
}

// String returns the text.
func (w Warning) String() string { return w.Text }

// MarshalText returns the text, which is all that JSON formats have of a warning.
func (w Warning) MarshalText() ([]byte, error) { return []byte(w.Text), nil }

// List is the warnings about one pod.
type List []Warning

// Texts returns the sentences, in order; nil when there are none.
func (w List) Texts() []string {
	var texts []string
	for _, warning := range w {
		texts = append(texts, warning.Text)
	}
	return texts
}
