//go:build linux

package installer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/meshcni/meshcni/installer/internal/diskfile"
)

// Op is what an [Action] does.
type Op string

// The operations, in the order an install does them.
const (
	OpRemoveTemp  Op = "remove-temp"  // Path: a temporary file of a killed run
	OpBinary      Op = "binary"       // From to Path
	OpKubeconfig  Op = "kubeconfig"   // New to Path, mode 0600
	OpRecord      Op = "record"       // New to Path, mode 0600: what an uninstall must know
	OpCreate      Op = "create"       // New to Path, where nothing is; mode and owner of From
	OpReplace     Op = "replace"      // Path from Old to New
	OpMoveAside   Op = "move-aside"   // From, holding Old, to Path
	OpMoveBack    Op = "move-back"    // From to Path, where nothing is
	OpRemoveConf  Op = "remove-conf"  // Path, holding Old
	OpRemoveOther Op = "remove-other" // Path: kubeconfig, binary or log of the plugin
)

// Action is one step of a plan. Every one is atomic, can be repeated, and leaves a node that can start pods.
type Action struct {
	Op   Op
	Path string
	From string
	// Old is what must be there still; else the step is refused and the plan made anew.
	Old, New []byte
	// Cause is a stable code of why, for metrics and logs.
	Cause string
	// Needs are the paths of actions before this one, without which it is not done.
	Needs []string
}

func (a Action) String() string {
	s := string(a.Op) + " " + a.Path
	if a.From != "" {
		s += " from " + a.From
	}
	return s + " (" + a.Cause + ")"
}

// conf tells whether the action changes a network configuration.
func (a Action) conf() bool {
	switch a.Op {
	case OpCreate, OpReplace, OpMoveAside, OpMoveBack, OpRemoveConf:
		return true
	}
	return false
}

func (a Action) do() error {
	var err error
	switch a.Op {
	case OpRemoveTemp:
		err = diskfile.RemoveTemp(a.Path)
	case OpRemoveOther:
		err = diskfile.Delete(a.Path)
	case OpBinary:
		err = copyBinary(a.From, a.Path)
	case OpKubeconfig, OpRecord:
		if err = os.MkdirAll(filepath.Dir(a.Path), 0o755); err == nil {
			err = diskfile.Write(a.Path, a.New, 0o600)
		}
	case OpCreate:
		err = diskfile.Create(a.Path, a.New, a.From)
	case OpReplace:
		err = diskfile.Replace(a.Path, a.Old, a.New)
	case OpMoveAside:
		err = diskfile.Move(a.From, a.Path, a.Old)
	case OpMoveBack:
		err = diskfile.MoveNew(a.From, a.Path)
	case OpRemoveConf:
		err = diskfile.Remove(a.Path, a.Old)
	}
	return explain(err, a.Path)
}

func copyBinary(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return diskfile.WriteFrom(to, src, 0o755)
}

// explain names the path, when the error does not, and what would help.
func explain(err error, path string) error {
	if err == nil || errors.Is(err, diskfile.ErrChanged) {
		return err
	}
	fix := ""
	switch {
	case errors.Is(err, syscall.EROFS):
		fix = "mount it writable: the hostPath volume must not be readOnly"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		fix = "free some space on that file system; the file there is unchanged"
	case errors.Is(err, fs.ErrPermission):
		fix = "run as UID 0 with CAP_DAC_OVERRIDE, and look for an immutable flag (lsattr) or an SELinux denial"
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		fix = "there is a directory where a file should be (or the reverse): remove it"
	case errors.Is(err, fs.ErrNotExist):
		fix = "the directory must exist: check the volume mounts and the --cni-bin-dir, --cni-conf-dir and --bin-source-dir flags"
	}
	if !strings.Contains(err.Error(), path) {
		err = fmt.Errorf("%s: %w", path, err)
	}
	if fix != "" {
		err = fmt.Errorf("%w (%s)", err, fix)
	}
	return err
}
