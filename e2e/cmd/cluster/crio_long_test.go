//go:build long

package main

import (
	"testing"

	"github.com/meshcni/meshcni/e2e/internal/onenode"
)

func TestClusterOnCRIO(t *testing.T) { testKept(t, onenode.CRIO) }
