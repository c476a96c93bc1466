//go:build linux

package installer

import (
	"fmt"
	"strconv"

	"github.com/meshcni/meshcni/conflist"
)

// OwnFile is a value of [Config].OwnFile: whether the agent keeps a list of its own.
type OwnFile string

// The values of OwnFile.
const (
	// OwnFileNever chains into the network's file.
	OwnFileNever OwnFile = "false"
	// OwnFileAlways keeps a list of our own, and leaves others' files alone.
	OwnFileAlways OwnFile = "true"
	// OwnFileAuto chains into the network's file, and keeps a list of our own once the entry was lost at a boot, or twice, however far
	// apart. The decision outlives the agent and a boot, until an uninstall or another value. None is taken while [Options].Hooked, nor
	// where the network's list delegates, as Multus' does. Without [Config].Chained it means OwnFileNever.
	OwnFileAuto OwnFile = "auto"
)

// UnmarshalText accepts "auto" and what strconv.ParseBool does.
func (o *OwnFile) UnmarshalText(text []byte) error {
	if *o = OwnFile(text); *o == OwnFileAuto {
		return nil
	}
	b, err := strconv.ParseBool(string(text))
	if err != nil {
		return fmt.Errorf("%q is not auto, true or false", text)
	}
	*o = OwnFile(strconv.FormatBool(b))
	return nil
}

func (o OwnFile) validate() error {
	switch o {
	case "", OwnFileNever, OwnFileAlways, OwnFileAuto:
		return nil
	}
	return fmt.Errorf("own-file %q: must be one of false, true, auto", string(o))
}

// wanted reports whether a file of our own may be kept.
func (o OwnFile) wanted() bool { return o == OwnFileAlways || o == OwnFileAuto }

// keepsOwn reports whether our own file is the target. With OwnFileAuto that is so once it has been taken, which its existence
// tells an agent that has begun since. It is not taken beside a plugin that delegates, which would delegate to it.
func (p *planner) keepsOwn() bool {
	switch there := p.exists(p.c.ownName()); {
	case p.c.OwnFile != OwnFileAuto:
		return p.c.OwnFile == OwnFileAlways
	case there || !p.o.taken:
		return there
	}
	first, err := conflist.Primary(p.o.conf, p.oursAlone()...)
	return err != nil || delegating(first.File) == ""
}
