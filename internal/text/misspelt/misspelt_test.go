package misspelt

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMeant(t *testing.T) {
	t.Parallel()
	known := []string{"mesh.example/exclude-inbound-ports", "mesh.example/exclude-outbound-ports", "mesh.example/dns", "mesh.example/mode"}
	for name, want := range map[string]string{
		"mesh.example/exclude-inbound-ports":   "", // known
		"mesh.example/exclude-inbound-port":    known[0],
		"mesh.example/exclud-inbound-ports":    known[0],
		"mesh.example/exclude-inbuond-ports":   known[0],
		"mesh.example/xeclude-outbound-portss": known[1],
		"mesh.exmaple/exclude-outbound-ports":  known[1],
		"mesh.example/excludeInboundPorts":     known[0],
		"mesh.example/EXCLUDE_INBOUND_PORTS":   known[0],
		"mesh-example/exclude-inbound-ports":   known[0],
		"mesh.example/Dns":                     known[2],
		"mesh.example/dms":                     "", // too short to be sure
		"mesh.example/dsn":                     known[2],
		"mesh.example/dn":                      "",
		"mesh.example/moode":                   known[3],
		"mesh.example/node":                    known[3],
		"mesh.example/nodes":                   "",
		"mesh.example/inbound-ports":           "",
		"other.org/exclude-inbound-ports":      "",
		"":                                     "",
	} {
		assert.Equal(t, want, Known(known).Meant(name), name)
	}
	for name, want := range map[string]string{"dsn": "dns", "ndS": "dns", "dn": "", "sdn": "", "dnx": "", "omde": "mode", "moed": "mode", "mtls": "", "oi": ""} {
		assert.Equal(t, want, Known([]string{"dns", "mode", "io"}).Meant(name), name)
	}
	assert.Empty(t, Known([]string{"a/inbound-ports", "a/inbound-port"}).Meant("a/inbound-port"), "known by a later name")
}

// FuzzMeant: an error is found both ways, and never by a name that is known.
func FuzzMeant(f *testing.F) {
	f.Add("mesh.example/exclude-ports", "mesh.example/exlcude-ports")
	f.Add("a/b", "")
	f.Fuzz(func(t *testing.T, a, b string) {
		assert.Empty(t, Known([]string{b, a}).Meant(a))
		assert.Equal(t, Known([]string{b}).Meant(a) == "", Known([]string{a}).Meant(b) == "")
	})
}
