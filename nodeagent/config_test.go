//go:build linux

package nodeagent

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
)

// TestDrainAtOnce: 0 is no default.
func TestDrainAtOnce(t *testing.T) {
	for set, want := range map[time.Duration]time.Duration{0: -1, time.Minute: time.Minute} {
		assert.Equal(t, want, Ambient{DrainTimeout: set}.drainTimeout())
	}
}

// TestSettingsOfTheStart: a change of a setting that only a start reads is refused, so that none is passed over. A new setting needs an answer.
func TestSettingsOfTheStart(t *testing.T) {
	s := DefaultConfig(meshcni.Identity{})
	s.Ambient.Enabled, s.Node = true, "a"
	live := []string{
		"Config",                         // but for what an installation keeps
		"Repair", "HostRoot", "ProcRoot", // restart it
	}
	change := func(t *testing.T, v reflect.Value) {
		switch v.Kind() {
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Int64:
			v.SetInt(v.Int() + int64(time.Minute))
		default:
			t.Fatalf("how does a %s change?", v.Type())
		}
	}
	each := func(field func(*Config) reflect.Value) {
		of0 := field(&s).Type()
		for i := range of0.NumField() {
			name := of0.Field(i).Name
			if slices.Contains(live, name) || name == "Ambient" || !of0.Field(i).IsExported() {
				continue
			}
			next := s
			change(t, field(&next).Field(i))
			require.ErrorContains(t, s.keeps(next), "need a restart of the agent", name)
		}
	}
	each(func(s *Config) reflect.Value { return reflect.ValueOf(s).Elem() })
	each(func(s *Config) reflect.Value { return reflect.ValueOf(&s.Ambient).Elem() })
	next := s
	next.CNICacheDir = "/elsewhere" // which the watch of the node's pods reads too
	require.ErrorContains(t, s.keeps(next), "cni-cache-dir")
	next = s
	next.Repair.Detect = nil
	require.ErrorContains(t, s.keeps(next), "detect")
	next.Repair.Detect, next.Repair.Action = s.Repair.Detect, "delete"
	require.ErrorContains(t, s.keeps(next), "repair")
	require.NoError(t, s.keeps(s))
}
