package nodepods_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/status"
)

const (
	victimUID = "f2b5b1c8-6c1f-4d3e-9d0a-3a3f0a1c9e77"
	tenantUID = "0a9d2c3e-7c55-4b0e-8a8e-5f0f4c1d2b3a"
	mirrorUID = "5c3b2a19-1f2e-4d3c-8b7a-6e5d4c3b2a10"
	staticUID = "d41d8cd98f00b204e9800998ecf8427e"
)

func mirror(namespace, name, uid, mirrored string) object {
	p := pod(namespace, name, uid)
	p["metadata"].(object)["annotations"] = object{corev1.MirrorPodAnnotationKey: mirrored}
	return p
}

// heard collects what a watch tells.
type heard struct {
	mu   sync.Mutex
	uids map[types.UID]int
}

func listen(t *testing.T, w *nodepods.Watch) *heard {
	h := &heard{uids: map[types.UID]int{}}
	t.Cleanup(w.Subscribe(func(uid types.UID) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.uids[uid]++
	}))
	return h
}

func (h *heard) of(uid types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.uids[uid] > 0
}

// TestMirrorOfAnother: what a pod's author writes of itself takes no other pod's place, whichever comes first, and whatever goes.
func TestMirrorOfAnother(t *testing.T) {
	t.Parallel()
	for what, claim := range map[string]string{"a pod of the API server": victimUID, "much": strings.Repeat("a", 200<<10), "nothing": "", "itself": tenantUID} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, victimFirst := range []bool{true, false} {
				a := newAPI(t)
				puts := []object{pod("shop", "cart", victimUID), mirror("tenant", "evil", tenantUID, claim)}
				if !victimFirst {
					puts[0], puts[1] = puts[1], puts[0]
				}
				a.put("ADDED", puts[0])
				w := start(t, a, nodepods.Options{Patience: time.Hour})
				eventually(t, "synced", w.Synced)
				h := listen(t, w)
				a.put("ADDED", puts[1])
				eventually(t, "both", func() bool { return len(w.Pods()) == 2 })

				assert.Equal(t, "cart", w.ByUID(victimUID).Name)
				assert.Equal(t, types.UID(victimUID), w.RuntimeUID(w.ByUID(victimUID)))
				assert.Equal(t, "evil", w.ByUID(tenantUID).Name)
				assert.Equal(t, types.UID(tenantUID), w.RuntimeUID(w.ByUID(tenantUID)))
				got, err := w.Pod(t.Context(), status.ID{Namespace: "shop", Name: "cart", UID: victimUID})
				require.NoError(t, err)
				assert.Equal(t, "cart", got.Pod.Name)
				assert.Nil(t, w.Known(status.ID{Namespace: "tenant", Name: "evil", UID: victimUID}))

				a.put("DELETED", mirror("tenant", "evil", tenantUID, claim))
				eventually(t, "the tenant's is gone", func() bool { return h.of(tenantUID) && len(w.Pods()) == 1 })
				assert.Equal(t, "cart", w.ByUID(victimUID).Name)
				if victimFirst {
					assert.False(t, h.of(victimUID), "nothing happened to it")
				}
			}
		})
	}
}

// TestMirrorOfStatic: a static pod is known by the kubelet's UID once the runtime has said that it is, by any of the ways in which it
// does; and nobody else's pod is, although it says the same.
func TestMirrorOfStatic(t *testing.T) {
	t.Parallel()
	means := status.ID{Namespace: "kube-system", Name: "proxy-n1", UID: staticUID}
	dirs := func(t *testing.T) (runDir, cacheDir string) {
		cacheDir = t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(cacheDir, "results"), 0o700))
		return t.TempDir(), cacheDir
	}
	for way, say := range map[string]func(t *testing.T, w *nodepods.Watch, runDir, cacheDir string){
		"the plugin asks": func(t *testing.T, w *nodepods.Watch, _, _ string) {
			got, err := w.Pod(t.Context(), means)
			require.NoError(t, err)
			assert.Equal(t, types.UID(mirrorUID), got.Pod.UID)
		},
		"the plugin's record": func(t *testing.T, _ *nodepods.Watch, runDir, _ string) {
			require.NoError(t, attachment.Open(runDir).Write(attachment.Record{ID: attachment.ID{Network: "n", ContainerID: "c", IfName: "eth0"}, Pod: means}))
		},
		"the runtime's cache": func(t *testing.T, _ *nodepods.Watch, _, cacheDir string) {
			require.NoError(t, os.WriteFile(filepath.Join(cacheDir, "results", "n-c-eth0"), []byte(`{"kind":"cniCacheV1","containerId":"c","ifName":"eth0",
				"networkName":"n","cniArgs":[["K8S_POD_NAMESPACE","kube-system"],["K8S_POD_NAME","proxy-n1"],["K8S_POD_UID","`+staticUID+`"]]}`), 0o600))
		},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t)
			runDir, cacheDir := dirs(t)
			w := start(t, a, nodepods.Options{Attached: nodepods.Attachments(inventory.New(inventory.Options{Records: attachment.Open(runDir), CacheDir: cacheDir}))})
			eventually(t, "synced", w.Synced)
			h := listen(t, w)
			real, forged := mirror("kube-system", "proxy-n1", mirrorUID, staticUID), mirror("tenant", "evil", tenantUID, staticUID)
			a.put("ADDED", forged)
			a.put("ADDED", real)
			eventually(t, "both", func() bool { return h.of(mirrorUID) && h.of(tenantUID) })
			assert.Nil(t, w.ByUID(staticUID), "nobody has proven anything")
			assert.Equal(t, types.UID(mirrorUID), w.RuntimeUID(w.ByUID(mirrorUID)))

			say(t, w, runDir, cacheDir)
			a.put("MODIFIED", forged)
			a.put("MODIFIED", real)
			eventually(t, "the static pod by its UID", func() bool { return h.of(staticUID) })
			assert.Equal(t, "proxy-n1", w.ByUID(staticUID).Name)
			assert.Equal(t, types.UID(staticUID), w.RuntimeUID(w.ByUID(mirrorUID)))
			assert.Equal(t, types.UID(tenantUID), w.RuntimeUID(w.ByUID(tenantUID)))
			for _, id := range []status.ID{{Namespace: "tenant", Name: "evil", UID: staticUID}, {Namespace: "kube-system", Name: "evil", UID: staticUID}} {
				_, err := w.Pod(t.Context(), id)
				require.ErrorIs(t, err, agentsock.ErrUnknown)
			}
			a.put("DELETED", forged)
			eventually(t, "one", func() bool { return len(w.Pods()) == 1 })
			assert.NotNil(t, w.ByUID(staticUID))
			a.put("DELETED", real)
			eventually(t, "none", func() bool { return len(w.Pods()) == 0 })
			assert.Nil(t, w.ByUID(staticUID))
		})
	}
}
