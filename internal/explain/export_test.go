package explain

// Closing and Cures are the tables of remedies.
var (
	Closing = closing
	Cures   = cures
)
