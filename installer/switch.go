//go:build linux

package installer

import (
	"fmt"
	"strconv"
)

// Switch is a setting that is on, off, or the agent's to decide. The zero value is off.
type Switch string

// The values of a Switch.
const (
	SwitchOff  Switch = "false"
	SwitchOn   Switch = "true"
	SwitchAuto Switch = "auto"
)

// UnmarshalText accepts "auto" and what strconv.ParseBool does.
func (s *Switch) UnmarshalText(text []byte) error {
	if *s = Switch(text); *s == SwitchAuto {
		return nil
	}
	on, err := strconv.ParseBool(string(text))
	if err != nil {
		return fmt.Errorf("%q is not auto, true or false", text)
	}
	*s = Switch(strconv.FormatBool(on))
	return nil
}

// Validate returns an error for a value that is none of the three, nor zero.
func (s Switch) Validate() error {
	switch s {
	case "", SwitchOff, SwitchOn, SwitchAuto:
		return nil
	}
	return fmt.Errorf("%q: must be one of false, true, auto", string(s))
}

// Wanted reports whether it is on, or may be.
func (s Switch) Wanted() bool { return s == SwitchOn || s == SwitchAuto }
