package engine_test

import (
	"encoding/json"
	"testing"

	"github.com/meshcni/meshcni/internal/playground"
	"github.com/meshcni/meshcni/internal/playground/engine"
)

// BenchmarkLook is what follows a keystroke, by machine code. In a browser it takes three to five times as long.
func BenchmarkLook(b *testing.B) {
	for _, op := range []string{"explain", "look"} {
		request, err := json.Marshal(engine.Request{Op: op, Subject: engine.Subject(playground.Examples()[1].State)})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(op, func(b *testing.B) {
			for b.Loop() {
				engine.Answer(request)
			}
		})
	}
}
