package podnetns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/meshcni/meshcni/netnsexec"
)

// Open opens the namespace. ProcRoot is the root of the proc file system that was
// given to [Find]. It proves that the file opened is what Find saw: a PID may have
// been taken by another process since. Errors: [ErrChanged], or one of
// [netnsexec.Open], which refuses the host's namespace. The caller calls Close.
func (f Found) Open(procRoot string) (*netnsexec.NetNS, error) {
	ns, err := netnsexec.Open(filepath.Join(procRoot, f.Path()))
	if errors.Is(err, netnsexec.ErrGone) {
		return nil, fmt.Errorf("open network namespace of pod %s: %w: %w", f.UID, ErrChanged, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace of pod %s: %w", f.UID, err)
	}
	// What is open stays what it is, so looking at the process now is enough.
	now, err := look(os.DirFS(procRoot), f.PID, f.UID)
	if err != nil && !gone(err) {
		return nil, errors.Join(fmt.Errorf("look at process %d: %w", f.PID, err), ns.Close())
	}
	if now != f || ns.ID().String() != f.NetNS {
		return nil, errors.Join(fmt.Errorf("open network namespace of pod %s: process %d: %w", f.UID, f.PID, ErrChanged), ns.Close())
	}
	return ns, nil
}
