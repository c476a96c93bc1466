package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// newest is the newest supported version of the CNI specification (https://www.cni.dev/docs/spec/). Newer ones in a list's
// "cniVersions" are ignored.
const newest = "1.1.0"

// Plugin is one plugin of a list.
type Plugin struct {
	// Type is the plugin's file name; never empty.
	Type string
	// Raw is the plugin's object as it stands in the file, byte for byte.
	Raw json.RawMessage
}

// File is a network configuration. Make one with [Parse]; the zero value is invalid.
type File struct {
	data    []byte
	single  bool
	name    string
	version string
	inline  bool
	array   span // of the plugins, when inline
	plugins []Plugin
	spans   []span
	dropIns bool // plugins in a directory of the network's name are loaded too
}

// Bytes returns the file as found. Do not change it.
func (f *File) Bytes() []byte { return f.data }

// IsList reports whether the file is a list, not a single plugin's configuration (the older .conf form).
func (f *File) IsList() bool { return !f.single }

// Network returns the network's name. It may be empty in a single configuration.
func (f *File) Network() string { return f.name }

// CNIVersion returns the version that libcni would use with the plugins; empty, which means 0.1.0, when there is none.
func (f *File) CNIVersion() string { return f.version }

// Plugins returns the inline plugins, in order; a single configuration has one. Those in a directory are not included.
func (f *File) Plugins() []Plugin { return f.plugins }

// Has reports whether an inline plugin is of the type.
func (f *File) Has(pluginType string) bool { return len(f.indexes(pluginType)) > 0 }

// Parse reads a list or, if it has a "type" and no "plugins", a single plugin's configuration. Errors: [ErrInvalid].
func Parse(data []byte) (*File, error) {
	var probe map[string]json.RawMessage
	if err := json.Unmarshal(data, &probe); err == nil {
		_, list := probe["plugins"]
		if _, single := probe["type"]; single && !list {
			return parseSingle(data)
		}
	}
	return parseList(data)
}

// ParseFile reads data as a runtime does, by the file's name: a list in .conflist, a single plugin in .conf and .json.
// Errors: [ErrInvalid].
func ParseFile(name string, data []byte) (*File, error) {
	if path.Ext(name) == ".conflist" {
		return parseList(data)
	}
	return parseSingle(data)
}

// pluginConf mirrors the fields that libcni decodes, because a wrong type in any of them makes it refuse the whole file.
type pluginConf struct {
	CNIVersion   string          `json:"cniVersion"`
	Name         string          `json:"name"`
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
	IPAM         struct {
		Type string `json:"type"`
	} `json:"ipam"`
	DNS struct {
		Nameservers []string `json:"nameservers"`
		Domain      string   `json:"domain"`
		Search      []string `json:"search"`
		Options     []string `json:"options"`
	} `json:"dns"`
	PrevResult       map[string]any `json:"prevResult"`
	ValidAttachments []struct {
		ContainerID string `json:"containerID"`
		IfName      string `json:"ifname"`
	} `json:"cni.dev/valid-attachments"`
}

func parsePlugin(raw []byte) (pluginConf, error) {
	var conf pluginConf
	if err := json.Unmarshal(raw, &conf); err != nil {
		return conf, err
	}
	if conf.Type == "" {
		return conf, errors.New(`no "type"`)
	}
	return conf, nil
}

// parseListed reads a plugin of a list through its decoded value, as libcni does: so that of "Type" and "type", or of one
// key twice, the same one wins.
func parseListed(v any) (pluginConf, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return pluginConf{}, err
	}
	return parsePlugin(raw)
}

// object decodes the document and insists on an object. Numbers beyond float64 fail here, as they do in libcni.
func object(data []byte) (map[string]any, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("%w: the file is empty", ErrInvalid)
	}
	var doc map[string]any
	err := json.Unmarshal(data, &doc)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		line, col := position(data, syntax.Offset)
		return nil, fmt.Errorf("%w: line %d, column %d: %w", ErrInvalid, line, col, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	case doc == nil:
		return nil, fmt.Errorf("%w: null is no object", ErrInvalid)
	}
	return doc, nil
}

// position is the 1-based line and byte column of an offset that encoding/json reports (the byte behind the bad one).
func position(data []byte, offset int64) (line, col int) {
	before := data[:max(0, min(int(offset)-1, len(data)))]
	return 1 + bytes.Count(before, []byte("\n")), len(before) - bytes.LastIndexByte(before, '\n')
}

func parseSingle(data []byte) (*File, error) {
	doc, err := object(data)
	if err != nil {
		return nil, err
	}
	conf, err := parsePlugin(data)
	if err != nil {
		if _, list := doc["plugins"]; list {
			return nil, fmt.Errorf(`%w: a list of plugins, which only a .conflist file may hold: %w`, ErrInvalid, err)
		}
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	at := top(data)
	return &File{
		data: data, single: true, name: conf.Name, version: conf.CNIVersion, inline: true,
		plugins: []Plugin{{conf.Type, at.of(data)}}, spans: []span{at},
	}, nil
}

func parseList(data []byte) (*File, error) {
	doc, err := object(data)
	if err != nil {
		return nil, err
	}
	f := &File{data: data}
	name, found := doc["name"]
	var ok bool
	if f.name, ok = name.(string); !ok {
		if !found {
			return nil, fmt.Errorf(`%w: a list without "name"`, ErrInvalid)
		}
		return nil, fmt.Errorf(`%w: "name" is no string`, ErrInvalid)
	}
	if f.version, err = listVersion(doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for _, key := range []string{"disableCheck", "disableGC", "loadOnlyInlinedPlugins"} {
		on, err := flag(doc, key)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		f.dropIns = !on // the last key decides
	}
	if _, ok := doc["plugins"]; !ok {
		if !f.dropIns {
			return nil, fmt.Errorf(`%w: "loadOnlyInlinedPlugins" without "plugins"`, ErrInvalid)
		}
		return f, nil
	}
	f.inline = true
	m, _ := last(members(data, top(data)), "plugins")
	if data[m.val.start] != '[' {
		return nil, fmt.Errorf(`%w: "plugins" is no array`, ErrInvalid)
	}
	f.array, f.spans = m.val, elements(data, m.val)
	if len(f.spans) == 0 {
		return nil, fmt.Errorf(`%w: "plugins" is empty`, ErrInvalid)
	}
	decoded, _ := doc["plugins"].([]any)
	for i, at := range f.spans {
		conf, err := parseListed(decoded[i])
		if err != nil {
			return nil, fmt.Errorf("%w: plugin %d: %w", ErrInvalid, i, err)
		}
		f.plugins = append(f.plugins, Plugin{conf.Type, at.of(data)})
	}
	return f, nil
}

func flag(doc map[string]any, key string) (bool, error) {
	switch v := doc[key].(type) {
	case nil:
		if _, there := doc[key]; !there {
			return false, nil
		}
	case bool:
		return v, nil
	case string: // libcni takes these too
		switch strings.ToLower(v) {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
	}
	return false, fmt.Errorf("%q is neither true nor false", key)
}

// listVersion is "cniVersion", or the newest of it and "cniVersions" that is not beyond newest.
func listVersion(doc map[string]any) (string, error) {
	var chosen string
	if v, there := doc["cniVersion"]; there {
		var ok bool
		if chosen, ok = v.(string); !ok {
			return "", errors.New(`"cniVersion" is no string`)
		}
	}
	many, there := doc["cniVersions"]
	if !there {
		return chosen, nil
	}
	list, ok := many.([]any)
	if !ok {
		return "", errors.New(`"cniVersions" is no array`)
	}
	if chosen != "" {
		list = append(list, chosen)
	}
	newest, _ := parseVersion(newest)
	var best [3]int
	found := false
	for i, v := range list {
		s, ok := v.(string)
		if !ok {
			return "", fmt.Errorf(`"cniVersions": entry %d is no string`, i)
		}
		n, err := parseVersion(s)
		if err != nil {
			return "", fmt.Errorf(`"cniVersions": entry %d: %w`, i, err)
		}
		if slices.Compare(n[:], newest[:]) <= 0 && (!found || slices.Compare(n[:], best[:]) >= 0) {
			best, chosen, found = n, s, true
		}
	}
	return chosen, nil
}

func parseVersion(s string) (v [3]int, err error) {
	if s == "" {
		return [3]int{0, 1, 0}, nil
	}
	parts := strings.Split(s, ".")
	if len(parts) > 3 {
		return v, fmt.Errorf("version %q has more than three parts", s)
	}
	for i, p := range parts {
		if v[i], err = strconv.Atoi(p); err != nil {
			return v, fmt.Errorf("version %q: part %q is no number", s, p)
		}
	}
	return v, nil
}
