//go:build linux

package nodeagent

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestUnheardOf: an agent that a real API server tells nothing any more stays ready and warns, and the node has the event once the server is back.
func TestUnheardOf(t *testing.T) {
	netnstest.Require(t, kubetest.Servers)
	s := kubetest.Own(t, kubetest.Options{})
	_, o := node(t)
	o.Config.Node, o.unheard = "n1", time.Millisecond
	var err error
	o.API, err = s.Config(kubetest.AdminToken)
	require.NoError(t, err)
	a := start(t, o)
	defer func() { require.NoError(t, a.end()) }()
	warned := func() bool {
		return slices.ContainsFunc(news.Warnings(a.Status().News), func(text string) bool { return strings.HasPrefix(text, "pods-outdated: ") })
	}
	waittest.Eventually(t, "the agent has the node's pods", func() error {
		if warned() {
			return fmt.Errorf("it warns: %q", news.Warnings(a.Status().News))
		}
		_, err := a.sock.podsOf()
		return err
	})
	s.StopAPI()
	waittest.Eventually(t, "the agent warns", func() error {
		if !warned() || !strings.Contains(a.log.String(), `"code":"pods-outdated"`) {
			return fmt.Errorf("it says %q", news.Warnings(a.Status().News))
		}
		return nil
	})
	require.NoError(t, s.StartAPI())
	waittest.Eventually(t, "the agent hears again", func() error {
		if warned() {
			return fmt.Errorf("it says %q", news.Warnings(a.Status().News))
		}
		return nil
	})
	admin := s.Admin(t)
	waittest.Eventually(t, "the node has the event", func() error {
		events := &corev1.EventList{}
		admin.Do(t, http.MethodGet, "/api/v1/namespaces/default/events", nil, events)
		for _, e := range events.Items {
			if e.Reason == "PodsOutdated" && e.InvolvedObject.Name == "n1" {
				assert.Contains(t, e.Message, "the API server has told nothing of the node's pods since ")
				return nil
			}
		}
		return fmt.Errorf("there are %d events", len(events.Items))
	})
}
