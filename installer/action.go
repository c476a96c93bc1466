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

	"github.com/meshcni/meshcni/internal/files/diskfile"
)

// op is the kind of an [action].
type op string

// The operations, in the order in which an install does them.
const (
	opRemoveTemp  op = "remove-temp"  // remove Path, the temporary file of a killed process
	opBinary      op = "binary"       // copy From to Path
	opKubeconfig  op = "kubeconfig"   // write New to Path, mode 0600
	opRecord      op = "record"       // write New, the plugin's types, or its settings at the runtime's hook, to Path, mode 0600
	opLink        op = "link"         // make Path a link to From, which is below its directory
	opCreate      op = "create"       // write New to Path, which must not exist; mode and owner as From
	opReplace     op = "replace"      // change Path from Old to New
	opMoveAside   op = "move-aside"   // rename From, which contains Old, to Path
	opMoveBack    op = "move-back"    // rename From to Path, which must not exist
	opRemoveConf  op = "remove-conf"  // remove Path, which contains Old
	opRemoveOther op = "remove-other" // remove Path: the kubeconfig, the binary, or a file that the plugin left behind
)

// action is one step of a [Plan]. Every action is atomic and can be repeated, and the node can start pods after each.
type action struct {
	Op op
	// Path is the file that changes. From is the other file of Op, if it has one.
	Path, From string
	// Old is the content that Path or From must still have; otherwise a new plan is made. New is the content to write.
	Old, New []byte
	// cause is the reason for the action.
	Cause cause
	// Needs are the paths of earlier actions. If one of these fails, this action is skipped.
	Needs []string
}

func (a action) String() string {
	s := string(a.Op) + " " + a.Path
	if a.From != "" {
		s += " from " + a.From
	}
	return s + " (" + string(a.Cause) + ")"
}

// conf reports whether the action changes a network configuration.
func (a action) conf() bool {
	switch a.Op {
	case opCreate, opReplace, opMoveAside, opMoveBack, opRemoveConf:
		return true
	}
	return false
}

func (a action) do() error {
	var err error
	switch a.Op {
	case opRemoveTemp:
		err = diskfile.RemoveTemp(a.Path)
	case opRemoveOther:
		err = diskfile.Delete(a.Path)
	case opBinary:
		err = copyBinary(a.From, a.Path)
	case opKubeconfig, opRecord:
		if err = os.MkdirAll(filepath.Dir(a.Path), 0o755); err == nil {
			err = diskfile.Write(a.Path, a.New, 0o600)
		}
	case opLink:
		if err = diskfile.Delete(a.Path); err == nil {
			err = os.Symlink(a.From, a.Path)
		}
	case opCreate:
		err = diskfile.Create(a.Path, a.New, a.From)
	case opReplace:
		err = diskfile.Replace(a.Path, a.Old, a.New)
	case opMoveAside:
		err = diskfile.Move(a.From, a.Path, a.Old)
	case opMoveBack:
		err = diskfile.MoveNew(a.From, a.Path)
	case opRemoveConf:
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
