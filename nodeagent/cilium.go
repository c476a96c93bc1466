//go:build linux

package nodeagent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/status"
)

const (
	// ciliumType is the type of Cilium's plugin.
	ciliumType = "cilium-cni"
	// ciliumLook is the interval of looks at the list that is loaded, and ciliumAsk that of questions for the ConfigMap.
	ciliumLook, ciliumAsk = 10 * time.Second, 10 * time.Minute
)

// cilium warns of a Cilium that may replace a Service's address by a pod's before any rule sees the connection: it does so within connect,
// unless it leaves that to the node's own namespace.
type cilium struct {
	plugins func() []string // of the list that is loaded
	api     func() (*api.Client, error)

	mu    sync.Mutex
	asked time.Time
	text  string // empty: there is no such Cilium, or it is seen to be set up well
}

func (o Options) newCilium(plugins func() []string) *cilium {
	return &cilium{plugins: plugins, api: func() (*api.Client, error) { return o.client(o.Config) }}
}

// run looks again and again until the context ends.
func (c *cilium) run(ctx context.Context) error {
	for {
		c.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(ciliumLook):
		}
	}
}

func (c *cilium) look(ctx context.Context) {
	there := slices.Contains(c.plugins(), ciliumType)
	c.mu.Lock()
	ask := there && (c.asked.IsZero() || time.Since(c.asked) >= ciliumAsk)
	if !there {
		c.asked, c.text = time.Time{}, ""
	}
	c.mu.Unlock()
	if !ask {
		return
	}
	text := c.judge(ctx)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked, c.text = time.Now(), text
}

// judge returns what is wrong with Cilium's settings, or what to look at where they cannot be read.
func (c *cilium) judge(ctx context.Context) string {
	const does = "it replaces a Service's address within connect, and the mesh's proxy sees a pod's"
	settings, err := c.settings(ctx)
	if err != nil {
		return fmt.Sprintf("the loaded list is Cilium's. If Cilium replaces kube-proxy, it needs socketLB.hostNamespaceOnly=true: else %s. Its settings cannot be read (%v): "+
			"see that ConfigMap cilium-config has bpf-lb-sock-hostns-only true, and cni-exclusive false", does, err)
	}
	var wrong []string
	on := func(key string, values ...string) bool {
		return slices.Contains(values, strings.ToLower(settings[key]))
	}
	if (on("kube-proxy-replacement", "true", "strict") || on("bpf-lb-sock", "true") || on("enable-host-reachable-services", "true")) && !on("bpf-lb-sock-hostns-only", "true") {
		wrong = append(wrong, "Cilium replaces kube-proxy without socketLB.hostNamespaceOnly=true (bpf-lb-sock-hostns-only): "+does)
	}
	if on("cni-exclusive", "true") {
		wrong = append(wrong, "Cilium wants the directory of networks for itself: set cni.exclusive=false, or it removes our entry")
	}
	return strings.Join(wrong, "; ")
}

// settings reads Cilium's ConfigMap, for which the agent has no right unless somebody gives it.
func (c *cilium) settings(ctx context.Context) (map[string]string, error) {
	client, err := c.api()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	return client.ConfigMap(ctx, "kube-system", "cilium-config")
}

// News has the present fault, if there is one.
func (c *cilium) News() []status.News {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.text == "" {
		return nil
	}
	return []status.News{news.New(status.KindNotice, news.Cilium, c.text)}
}
