//go:build linux

package nodeagent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/files/hostpath"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// places are the directories of the node that the agent works in.
func (s Config) places() (all []agentapi.Place) {
	add := func(flag, path string, writes bool) {
		p := agentapi.Place{Flag: flag, Path: path, Host: hostpath.OnHost(path), Writes: writes}
		if err := usable(path, writes); err != nil {
			p.Error = err.Error()
		}
		all = append(all, p)
	}
	for _, dir := range s.CNIBinDirs {
		add("cni-bin-dir", dir, true)
	}
	add("cni-conf-dir", s.CNIConfDir, true)
	add("cni-cache-dir", s.CNICacheDir, false)
	add("run-dir", s.RunDir, true)
	if s.Ambient.Enabled {
		add("zds-socket", filepath.Dir(s.Ambient.ZDSSocket), true)
	}
	return all
}

// usable returns why the agent cannot work in a directory.
func usable(path string, writes bool) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("it is not there")
	case err != nil:
		return err
	case !info.IsDir():
		return errors.New("it is not a directory")
	}
	mode := uint32(unix.R_OK | unix.X_OK)
	if writes {
		mode |= unix.W_OK
	}
	switch err := unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS); {
	case errors.Is(err, unix.EROFS):
		return errors.New("it is read-only")
	case errors.Is(err, unix.EACCES):
		return errors.New("the agent may not use it: it is another user's, and the agent is not root or has not DAC_OVERRIDE")
	default:
		return err
	}
}

// lookAtBinDirs returns the runtime's directories of plugins, with what the network's list needs of them.
func (n nodeAPI) lookAtBinDirs(types []string) (all []agentapi.BinDir) {
	if n.options.Config.Alone {
		return nil
	}
	for _, dir := range n.binDirs() {
		b := agentapi.BinDir{Path: dir.Path, Plugin: agentapi.Missing}
		switch {
		case dir.Err != nil:
			b.Error, b.Plugin = strings.TrimSpace(dir.Err.Error()), ""
		case dir.Current:
			b.Plugin = agentapi.Current
		case dir.Usable:
			b.Plugin = agentapi.Another
		}
		for _, t := range types {
			if dir.Err == nil && !dir.Has(t) {
				b.Lacks = append(b.Lacks, t)
			}
		}
		all = append(all, b)
	}
	return all
}
