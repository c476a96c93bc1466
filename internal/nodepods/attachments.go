package nodepods

import (
	"os"
	"sync"

	"github.com/meshcni/meshcni/internal/cnicache"
	"github.com/meshcni/meshcni/internal/filememo"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/status"
)

// Attachments returns an Options.Attached that reads the plugin's records in run_dir and libcni's cache. Both repeat what the
// runtime said of a pod when it set up its network, and only root writes them. An empty directory is not read; what cannot be read
// says nothing. It is safe for concurrent use.
func Attachments(runDir, cacheDir string) func(status.ID) bool {
	a := &attachments{cacheDir: cacheDir}
	if runDir != "" {
		a.records = attachment.Open(runDir).Index()
	}
	return a.of
}

type attachments struct {
	cacheDir string

	mu      sync.Mutex
	records func() ([]attachment.Record, error) // nil: there are none
	cache   filememo.Memo[status.ID]
}

func (a *attachments) of(pod status.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.records != nil {
		records, _ := a.records() // those that can be read
		for _, r := range records {
			if r.Pod == pod {
				return true
			}
		}
	}
	if a.cacheDir == "" {
		return false
	}
	fsys := os.DirFS(a.cacheDir)
	cached, _ := a.cache.Refresh(fsys, cnicache.Dirs, func(name string) (status.ID, error) {
		c, err := cnicache.Read(fsys, name)
		return status.ID{Namespace: c.Arg("K8S_POD_NAMESPACE"), Name: c.Arg("K8S_POD_NAME"), UID: c.Arg("K8S_POD_UID")}, err
	})
	for _, p := range cached {
		if p == pod {
			return true
		}
	}
	return false
}
