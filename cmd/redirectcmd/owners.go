package redirectcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/facts/istiofacts"
	"github.com/meshcni/meshcni/redirect"
)

// The users and groups of the container in which this program runs (passwd(5), group(5)).
const (
	passwd = "/etc/passwd"
	groups = "/etc/group"
)

// numbers returns those of the users or groups of a file. A file that does not exist has none.
func (p Program) numbers(file string) (map[string]uint32, error) {
	text, err := p.streams().Read(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look up users and groups: %w", err)
	}
	known := map[string]uint32{}
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 3 {
			continue
		}
		n, err := strconv.ParseUint(f[2], 10, 32)
		if _, again := known[f[0]]; err == nil && !again {
			known[f[0]] = uint32(n)
		}
	}
	return known, nil
}

// ids reads a list of users or groups, by number or by name. The proxy's own name has the number that Istio's image gives it, if the
// file has none. The error names each element that is wrong.
func (p Program) ids(value, file string) ([]uint32, error) {
	var known map[string]uint32
	var unread error
	var errs []error
	var ids []string
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		if strings.Trim(name, "0123456789") == "" {
			ids = append(ids, name)
			continue
		}
		if known == nil && unread == nil {
			known, unread = p.numbers(file)
		}
		id, ok := known[name]
		switch {
		case ok:
		case name == istiofacts.User && unread == nil:
			id = istio.ProxyID
		case unread != nil:
			errs = append(errs, fmt.Errorf("%q is no number: %w", name, unread))
			continue
		default:
			errs = append(errs, fmt.Errorf("%q is no number from 0 to %d, and %s does not have the name", name, uint32(redirect.NoID-1), file))
			continue
		}
		ids = append(ids, strconv.FormatUint(uint64(id), 10))
	}
	list, err := redirect.ParseIDs(strings.Join(ids, ","))
	return list, errors.Join(append(errs, err)...)
}

// setUIDs keeps the default for an empty value, because every proxy has a user.
func setUIDs(b *flagBuild, value string) error {
	list, err := b.p.ids(value, passwd)
	if len(list) > 0 {
		b.Proxy.UIDs, b.users = list, value
	}
	return err
}

func setGIDs(b *flagBuild, value string) error {
	list, err := b.p.ids(value, groups)
	if len(list) > 0 {
		b.Proxy.GIDs, b.gidsSet = list, true
	}
	return err
}

func setOwnerGroups(b *flagBuild, value string) (err error) {
	if strings.TrimSpace(value) == "*" {
		value = ""
	}
	b.Outbound.OwnerGroups, err = b.p.ids(value, groups)
	return err
}

func setExcludeOwnerGroups(b *flagBuild, value string) (err error) {
	b.Outbound.ExcludeOwnerGroups, err = b.p.ids(value, groups)
	return err
}

// proxyUsers sets the proxy's users and groups that no flag has. Istio's program looks up the user that a variable names, and takes
// its default if there is none. The groups are called as the users; one that does not exist has the user's number.
func (b *flagBuild) proxyUsers(asIstio bool) error {
	name, ok := b.p.Env(istiofacts.UserVariable)
	if asIstio && b.users == "" {
		known, err := b.p.numbers(passwd)
		if !ok || name == "" {
			name = istiofacts.User
		}
		id, found := known[name]
		switch {
		case found:
			b.Proxy.UIDs = []uint32{id}
		case err != nil:
			return fmt.Errorf("variable %s=%q: %w", istiofacts.UserVariable, name, err)
		}
	}
	if b.gidsSet || len(b.Proxy.GIDs) == 0 { // a mesh that goes by users alone stays so
		return nil
	}
	b.Proxy.GIDs = slices.Clone(b.Proxy.UIDs)
	if strings.Trim(b.users, "0123456789, ") == "" {
		return nil
	}
	gids, err := b.p.numbers(groups)
	uids, uerr := b.p.numbers(passwd)
	if err := errors.Join(err, uerr); err != nil {
		return err
	}
	names := strings.Split(b.users, ",")
	for i, name := range names {
		for _, known := range []map[string]uint32{gids, uids} {
			if id, ok := known[strings.TrimSpace(name)]; ok {
				names[i] = strconv.FormatUint(uint64(id), 10)
				break
			}
		}
	}
	b.Proxy.GIDs, err = b.p.ids(strings.Join(names, ","), groups)
	return err
}
