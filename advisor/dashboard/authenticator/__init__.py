"""Who may come in: sessions of people, guards of forms and headers, counted visits."""
