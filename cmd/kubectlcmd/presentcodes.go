package kubectlcmd

import (
	"io"

	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/status"
)

// present is the pod's current state, by everything that the cluster tells, and its root cause, if there is any trouble.
type present struct {
	Code     status.Code `json:"code"`
	Sentence string      `json:"sentence"`
	Because  []string    `json:"because,omitempty"`
	Do       []string    `json:"do"`
	exit     int
}

// trouble reports whether something is to be said before what should be.
func (p present) trouble() bool { return p.Code != status.CodeCaptured && p.Code != status.CodeOutside }

// print writes how the pod is, and what should be.
func (p present) print(w io.Writer, v explain.Verdict) error {
	out := visible.To(w)
	if !p.trouble() {
		if p.Code == status.CodeCaptured {
			v.Sentence, v.Because = p.Sentence, p.Because
		}
		_, err := v.WriteTo(w)
		return err
	}
	if _, err := (explain.Verdict{Sentence: p.Sentence, Because: p.Because, Do: p.Do}).WriteTo(w); err != nil {
		return err
	}
	if v.Sentence == "" || p.Code == status.CodeRefused || p.Code == status.CodeWouldRefuse || p.Code == status.CodeExcludedInjected || p.Code == status.CodeOtherDialect || p.Sentence == v.Sentence {
		return nil // that is what has just been said
	}
	out.Printf("\nBy its settings: %s\n", v.Sentence) // the rest of the verdict is no matter while this is so
	if v.State == status.StateRefused {
		for _, because := range v.Because {
			out.Printf("  %s\n", because)
		}
	}
	return out.Err()
}
