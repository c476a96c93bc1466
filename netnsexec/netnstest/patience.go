package netnstest

import "time"

// Patience is how long a test waits for what must happen: minutes, since a busy machine is no defect of what is tested.
// A test that passes does not wait for it.
const Patience = 5 * time.Minute
