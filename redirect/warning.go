package redirect

import "fmt"

// WarningCode is the kind of a [Warning]. Codes are stable: never renamed, never reused.
type WarningCode string

// The codes.
const (
	// WarningInvalid: the value cannot be read, so the setting counts as not set.
	WarningInvalid WarningCode = "invalid-value"
	// WarningDeprecated: the setting is read under an old key.
	WarningDeprecated WarningCode = "deprecated-key"
	// WarningUnknown: nothing is known of the key, so it has no effect.
	WarningUnknown WarningCode = "unknown-key"
	// WarningNoEffect: the setting is known, and has no effect on this pod.
	WarningNoEffect WarningCode = "no-effect"
	// WarningContradiction: the setting contradicts another part of the pod.
	WarningContradiction WarningCode = "contradiction"
	// WarningFallback: what would decide is not known, so something else does.
	WarningFallback WarningCode = "fallback"
	// WarningFamilyAbsent: the kernel lacks a family that the mesh captures.
	WarningFamilyAbsent WarningCode = "family-absent"
	// WarningFamilyDropped: the pod has an address of a family whose TCP is
	// dropped, because the mesh does not capture it.
	WarningFamilyDropped WarningCode = "family-dropped"
)

// WarningCodes lists every code.
var WarningCodes = []WarningCode{
	WarningInvalid, WarningDeprecated, WarningUnknown, WarningNoEffect,
	WarningContradiction, WarningFallback, WarningFamilyAbsent, WarningFamilyDropped,
}

// Warning reports a setting that was ignored or tolerated. In JSON it is its text.
type Warning struct {
	Code WarningCode
	// Key is the setting's annotation, label or variable; empty when the warning is about no setting.
	Key string
	// Text is the warning as a sentence. Its wording may change.
	Text string
}

// Warningf makes a Warning, with its text as fmt.Sprintf formats it.
func Warningf(code WarningCode, key, format string, args ...any) Warning {
	return Warning{Code: code, Key: key, Text: fmt.Sprintf(format, args...)}
}

// String returns the text.
func (w Warning) String() string { return w.Text }

// MarshalText returns the text, which is all that JSON formats have of a warning.
func (w Warning) MarshalText() ([]byte, error) { return []byte(w.Text), nil }

// Warnings is a list of warnings.
type Warnings []Warning

// Texts returns the sentences, in order; nil when there are none.
func (w Warnings) Texts() []string {
	var texts []string
	for _, warning := range w {
		texts = append(texts, warning.Text)
	}
	return texts
}
