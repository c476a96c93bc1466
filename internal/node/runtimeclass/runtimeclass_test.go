package runtimeclass_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/internal/node/runtimeclass"
)

func TestIs(t *testing.T) {
	classes := []string{"kata", "my-vm", ""}
	for name, want := range map[string]bool{"kata": true, "kata-qemu": true, "io.x.kata": true, "my-vm": true, "my": false, "katana": false, "": false, "runc": false} {
		assert.Equal(t, want, runtimeclass.Is(name, classes), name)
	}
}
