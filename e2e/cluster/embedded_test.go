package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/internal/proctest"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/repair/integration/kubetest"
	"github.com/meshcni/meshcni/selection"
)

// acme is the mesh of examples/own-dialect, as far as its pods here have it.
func acme() dialect.Dialect {
	r := redirect.Default()
	r.Proxy = redirect.Proxy{UIDs: []uint32{7001}, OutboundPort: 7001, InboundPort: 7002}
	r.Names.ChainPrefix = "ACME_"
	return dialect.Dialect{
		Name: "acme", Policy: selection.Policy{ProxyContainers: []string{"acme-proxy"}}, Names: r.Names,
		Build: dialect.FromSchema(redirect.Schema{Defaults: r}),
	}
}

// TestEmbeddedAgent: an agent of a mesh of one's own, in this process and beside a controller of ours, installs that mesh's plugin; pods of the
// mesh are captured, one that was there before is found and the controller hears of it; and an uninstall leaves the node as it was.
func TestEmbeddedAgent(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "embedded")
	s.mesh = mesh{"acme", "acme-proxy", 7001, 7001, 7002, nil}
	s.create(t, pod{name: "client", outside: true}, pod{name: "early"})
	s.ready(t, "client", "early")

	account := t.TempDir()
	ca, err := os.ReadFile(c.Server.CAFile())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(account, "ca.crt"), ca, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(account, "token"), []byte(kubetest.AdminToken), 0o600))
	var log proctest.Buffer
	o := nodeagent.Options{Dialects: []dialect.Dialect{acme()}, Config: nodeagent.DefaultConfig(meshcni.Identity{Name: "acme"}), Log: slog.New(slog.NewJSONHandler(&log, nil))}
	o.API, err = c.Server.Config(kubetest.AdminToken)
	require.NoError(t, err)
	a := &o.Config
	a.Node, a.KubernetesHost, a.KubernetesPort = nodeName, c.Server.Address().Addr().String(), strconv.Itoa(int(c.Server.Address().Port()))
	a.BinSourceDir, a.CNIBinDirs, a.CNIConfDir, a.CNICacheDir = filepath.Dir(image.AcmePlugin()), []string{containerd.CNIBinDir}, containerd.CNIConfDir, containerd.CNICache
	a.ServiceAccountDir, a.PluginServiceAccount, a.HealthAddress, a.MetricsAddress, a.Plugin.Dialects = account, "", "", "", []string{"acme"}
	a.UninstallOnExit = nodeagent.OnExitUninstall
	agent, err := nodeagent.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	all, ctx := errgroup.WithContext(ctx)
	var heard atomic.Pointer[string]
	all.Go(func() error { return agent.Run(ctx) })
	all.Go(func() error { // a controller of the embedder's
		for look := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				look.Stop()
				return nil
			case <-look.C:
			}
			for _, p := range agent.Status().Pods {
				if said := fmt.Sprint(p.Name, " ", p.State, " ", p.Reason); p.Namespace == s.namespace && p.NeedsAttention() {
					heard.Store(&said)
				}
			}
		}
	})
	ended := false
	end := func() {
		if !ended {
			ended = true
			cancel()
			assert.NoError(t, all.Wait(), "%s", &log)
		}
	}
	t.Cleanup(end)
	eventually(t, soon, "the plugin is installed", agent.Ready)
	assert.Contains(t, fileText(t, confList), `"acme-cni"`)

	step(t, c, "captured", func(t *testing.T) {
		s.create(t, pod{name: "cart"})
		s.ready(t, "cart")
		s.assertCaptured(t, "cart", "client")
		s.assertUncaptured(t, "early", "client")
	})
	step(t, c, "found", func(t *testing.T) {
		eventually(t, soon, "the controller hears of the pod that was there before", func() error {
			if said := heard.Load(); said == nil || !strings.HasPrefix(*said, "early failed ") {
				return errors.New(log.String())
			}
			return nil
		})
	})
	s.kubectl(t, "delete", "deployments,pods", "--all", "--timeout=60s")
	end()
	assert.Empty(t, s.Changes(t))
}
