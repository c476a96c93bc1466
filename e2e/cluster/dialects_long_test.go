//go:build long

package cluster_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestDialects: one agent, told to serve one mesh after the other.
func TestDialects(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "meshes")
	s.kubectl(t, "annotate", "namespace", s.namespace, "config.linkerd.io/skip-inbound-ports=9090")
	s.create(t, pod{name: "client", outside: true})
	since := install(t, c, "--set", "dialect=linkerd")
	s.ready(t, "client")
	for _, m := range otherMeshes() {
		step(t, c, m.dialect, func(t *testing.T) {
			s := shop{c, s.namespace, m}
			upgrade(t, c, "--set", "dialect="+m.dialect)
			eventually(t, soon, "the plugin knows its mesh", func() error {
				if text := fileText(t, confList); !strings.Contains(text, `"dialect": "`+m.dialect+`"`) {
					return errors.New(text)
				}
				return nil
			})
			s.create(t, pod{name: m.dialect})
			s.ready(t, m.dialect)
			s.assertCaptured(t, m.dialect, "client")
			ip, client := s.ip(t, m.dialect), s.ip(t, "client")
			assert.Equal(t, "9090 for "+client+":9090", s.dial(t, m.dialect, client+":9090"), "excluded outbound")
			assert.Equal(t, "9090 for "+ip+":9090", s.dial(t, "client", ip+":9090"), "excluded inbound")
			assertRights(t, c, since, "get daemonsets.apps", "get namespaces", "get pods", "create events", "patch events")
		})
	}
	s.leave(t)
}
