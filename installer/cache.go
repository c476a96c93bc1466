//go:build linux

package installer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/meshcni/meshcni/conflist"
)

// Attachments lists, from libcni's cache (the directory whose "results" fsys is, or "cache/results" where the runtime is
// cri-dockerd), the attachments whose list contains a plugin of the type: each will have its DEL called with that very list,
// whatever the configuration directory says by then. They are named network/container/interface. A missing cache has none.
func Attachments(fsys fs.FS, pluginType string) ([]string, error) {
	var all []string
	for _, dir := range []string{"results", "cache/results"} {
		some, err := attachments(fsys, dir, pluginType)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func attachments(fsys fs.FS, dir, pluginType string) ([]string, error) {
	entries, err := fs.ReadDir(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the runtime's cache of attachments: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		data, err := fs.ReadFile(fsys, dir+"/"+e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // its DEL came just now
		}
		if err != nil {
			return nil, fmt.Errorf("reading the runtime's cache of attachments: %w", err)
		}
		var cached struct {
			Config                           []byte
			NetworkName, ContainerID, IfName string
		}
		if json.Unmarshal(data, &cached) != nil {
			continue // libcni could not use it either
		}
		if f, err := conflist.Parse(cached.Config); err == nil && f.Has(pluginType) {
			out = append(out, cached.NetworkName+"/"+cached.ContainerID+"/"+cached.IfName)
		}
	}
	return out, nil
}
