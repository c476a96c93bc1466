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

	"github.com/meshcni/meshcni/internal/diskfile"
)

// Op is the kind of an [Action].
type Op string

// The operations, in the order in which an install does them.
const (
	OpRemoveTemp  Op = "remove-temp"  // remove Path, the temporary file of a killed process
	OpBinary      Op = "binary"       // copy From to Path
	OpKubeconfig  Op = "kubeconfig"   // write New to Path, mode 0600
	OpRecord      Op = "record"       // write New, the plugin's types, to Path, mode 0600
	OpCreate      Op = "create"       // write New to Path, which must not exist; mode and owner as From
	OpReplace     Op = "replace"      // change Path from Old to New
	OpMoveAside   Op = "move-aside"   // rename From, which contains Old, to Path
	OpMoveBack    Op = "move-back"    // rename From to Path, which must not exist
	OpRemoveConf  Op = "remove-conf"  // remove Path, which contains Old
	OpRemoveOther Op = "remove-other" // remove Path: the kubeconfig, the binary, or a file that the plugin left behind
)

// Action is one step of a [Plan]. Every action is atomic and can be repeated, and the node can start pods after each.
type Action struct {
	Op Op
	// Path is the file that changes. From is the other file of Op, if it has one.
	Path, From string
	// Old is the content that Path or From must still have; otherwise a new plan is made. New is the content to write.
	Old, New []byte
	// Cause is the reason for the action.
	Cause Cause
	// Needs are the paths of earlier actions. If one of these fails, this action is skipped.
	Needs []string
}

func (a Action) String() string {
	s := string(a.Op) + " " + a.Path
	if a.From != "" {
		s += " from " + a.From
	}
	return s + " (" + string(a.Cause) + ")"
}

// conf reports whether the action changes a network configuration.
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

// explain adds a remedy, and the path if the error does not name it.
func explain(err error, path string) error {
	if err == nil || errors.Is(err, diskfile.ErrChanged) {
		return err
	}
	if !strings.Contains(err.Error(), path) {
		err = fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w (mount it writable: the hostPath volume must not be readOnly)", err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w (free some space on that file system; the file there is unchanged)", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (run as UID 0 with CAP_DAC_OVERRIDE, and look for an immutable flag (lsattr) or an SELinux denial)", err)
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w (there is a directory where a file should be, or the reverse: remove it)", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w (%s does not exist: check the volume mounts and the --cni-bin-dir, --cni-conf-dir and --bin-source-dir flags)", err, missing(path))
	}
	return err
}

// missing returns path, or its highest parent that does not exist.
func missing(path string) string {
	for {
		dir := filepath.Dir(path)
		if _, err := os.Stat(dir); err == nil || dir == path {
			return path
		}
		path = dir
	}
}
